"""The script's saves: torch.save, and save and async_save of torch.distributed.checkpoint, with the bytes they write.

What a save calls inside it is no save of its own: save() of a checkpoint calls torch.save for each tensor, in threads
of its own, and async_save() calls save() in another thread, which writes while the training goes on.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ddp_ladder_instrument import log
from ddp_ladder_instrument.hooks import eager, patch

Note = Callable[[int, float, float, float, bool], None]
"""Gets the kind of save (log.TORCH_SAVE, ...), begin and end (time.perf_counter), bytes (NaN: not known), and whether
it was made beside the training, in another thread than the main one."""

_MAIN = threading.main_thread().ident


class Saves:
    """The saves that are going on, each in the thread that called it."""

    def __init__(self, note: Note) -> None:
        self._note = eager(note)
        self._bytes: dict[int, float] = {}  # that checkpoints wrote so far, by the thread; NaN: not known

    def patch_torch(self) -> None:
        patch(torch, "save", self._wrap_torch)

    def patch_checkpoint(self, saver: Any) -> None:
        """Note each save and async_save. saver: torch.distributed.checkpoint.state_dict_saver."""
        for name, kind in (("save", log.CHECKPOINT), ("async_save", log.ASYNC_CHECKPOINT)):
            patch(saver, name, functools.partial(self._wrap_checkpoint, kind))

    def patch_writer(self, filesystem: Any) -> None:
        """Count the bytes of checkpoints in files. filesystem: torch.distributed.checkpoint.filesystem."""
        written = eager(self._on_written)

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def write_data(*args: Any, **kwargs: Any) -> Any:
                results = original(*args, **kwargs)
                written(results)
                return results

            return write_data

        patch(filesystem._FileSystemWriter, "write_data", wrap)

    def _wrap_torch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        position = eager(_position)

        def save(*args: Any, **kwargs: Any) -> Any:
            thread = threading.get_ident()
            if thread in self._bytes or (self._bytes and thread != _MAIN):
                return original(*args, **kwargs)
            before, begin_s = position(args, kwargs, False), time.perf_counter()
            result = original(*args, **kwargs)
            end_s, after = time.perf_counter(), position(args, kwargs, True)
            size = math.nan if before is None or after is None else after - before
            self._note(log.TORCH_SAVE, begin_s, end_s, size, thread != _MAIN)
            return result

        return save

    def _wrap_checkpoint(self, kind: int, original: Callable[..., Any]) -> Callable[..., Any]:
        def save(*args: Any, **kwargs: Any) -> Any:
            thread = threading.get_ident()
            if thread in self._bytes:
                return original(*args, **kwargs)
            self._bytes[thread] = math.nan
            begin_s, size = time.perf_counter(), math.nan
            try:
                result = original(*args, **kwargs)
            finally:
                size = self._bytes.pop(thread)
            self._note(kind, begin_s, time.perf_counter(), size, thread != _MAIN)
            return result

        return save

    def _on_written(self, results: Any) -> None:
        thread = threading.get_ident()
        if thread in self._bytes and results.done():
            self._bytes[thread] = sum(result.size_in_bytes for result in results.value())


def _position(args: Sequence[Any], kwargs: dict[str, Any], is_written: bool) -> float:
    """Return how many bytes torch.save's file has before the save, and when it is written. NaN: not known.

    A file that is given by its name is written anew.
    """
    file = args[1] if len(args) > 1 else kwargs.get("f")
    try:
        if not isinstance(file, (str, os.PathLike)):
            return float(file.tell())  # type: ignore[union-attr]
        return float(os.path.getsize(file)) if is_written else 0.0
    except (OSError, ValueError, AttributeError):
        return math.nan
