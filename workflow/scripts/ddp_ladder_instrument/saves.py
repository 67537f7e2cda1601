"""The script's saves: torch.save, and save and async_save of torch.distributed.checkpoint, with the bytes they write.

torch.save writes other things, too, such as samples into the shards of a data set. It counts if it leaves a file, or if
what it writes into another one has a tensor of the shape of a trained one: those of a checkpoint may be copies.

What a save calls inside it is no save of its own: save() of a checkpoint calls torch.save for each tensor, in threads
of its own, and async_save() calls save() in another thread, which writes while the training goes on.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ddp_ladder_instrument import log
from ddp_ladder_instrument.hooks import Around, eager, patch

Note = Callable[[int, float, float, float, bool], None]
"""Gets the kind of save (log.TORCH_SAVE, ...), begin and end (time.perf_counter), bytes (NaN: not known), and whether
it was made beside the training, in another thread than the main one."""

_MAIN = threading.main_thread().ident
MOST_LOOKED_AT = 10_000  # parts of what is saved


class Saves:
    """The saves that are going on, each in the thread that called it."""

    def __init__(self, note: Note, shapes: Callable[[], set[torch.Size]] = set) -> None:
        """shapes: returns those of the trained tensors; none while they are not known."""
        self._note, self._position, self._may_be_state = eager(note), eager(_position), eager(self._is_state)
        self._shapes = shapes
        self._bytes: dict[int, float] = {}  # that checkpoints wrote so far, by the thread; NaN: not known

    def patch_torch(self) -> None:
        patch(torch, "save", self._save)

    def patch_checkpoint(self, saver: Any) -> None:
        """Note each save and async_save. saver: torch.distributed.checkpoint.state_dict_saver."""
        for name, kind in (("save", log.CHECKPOINT), ("async_save", log.ASYNC_CHECKPOINT)):
            patch(saver, name, self._checkpoint(kind))

    def patch_writer(self, filesystem: Any) -> None:
        """Count the bytes of checkpoints in files. filesystem: torch.distributed.checkpoint.filesystem."""
        written = eager(self._on_written)

        def write_data(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            results = original(*args, **kwargs)
            written(results)
            return results

        patch(filesystem._FileSystemWriter, "write_data", write_data)

    def _save(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        thread = threading.get_ident()
        if thread in self._bytes or (self._bytes and thread != _MAIN):
            return original(*args, **kwargs)
        before, begin_s = self._position(args, kwargs, False), time.perf_counter()
        result = original(*args, **kwargs)
        end_s, after = time.perf_counter(), self._position(args, kwargs, True)
        if self._may_be_state(args, kwargs) is not False:
            size = math.nan if before is None or after is None else after - before
            self._note(log.TORCH_SAVE, begin_s, end_s, size, thread != _MAIN)
        return result

    def _is_state(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Return True if what torch.save has written is a file, or may be a state of the training."""
        file = _file(args, kwargs)
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            if stat.S_ISREG(
                (os.stat(file) if isinstance(file, (str, os.PathLike)) else os.fstat(file.fileno())).st_mode
            ):
                return True
        shapes = self._shapes()
        return not shapes or _has_one_of(args[0] if args else kwargs.get("obj"), shapes)

    def _checkpoint(self, kind: int) -> Around:
        def save(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
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
    file = _file(args, kwargs)
    try:
        if not isinstance(file, (str, os.PathLike)):
            return float(file.tell())
        return float(os.path.getsize(file)) if is_written else 0.0
    except (OSError, ValueError, AttributeError):
        return math.nan


def _file(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("f")


def _has_one_of(saved: Any, shapes: set[torch.Size]) -> bool:
    """Return True if there is a tensor of one of these shapes in it; also if it has too many parts to look at."""
    left, seen = [saved], set[int]()
    while left and len(seen) < MOST_LOOKED_AT:
        part = left.pop()
        if id(part) in seen or isinstance(part, (str, bytes, int, float)):
            continue
        seen.add(id(part))
        if isinstance(part, torch.Tensor):
            if part.shape in shapes:
                return True
        elif isinstance(part, Mapping):
            left.extend(part.values())
        elif isinstance(part, (list, tuple, set)):
            left.extend(part)
        else:
            left.extend(getattr(part, "__dict__", {}).values())
    return bool(left)
