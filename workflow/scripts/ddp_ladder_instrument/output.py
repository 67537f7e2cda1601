"""Output of the script goes into a log of the ladder's: a disk that takes no more of it does not end the script."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from collections.abc import Callable
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class _Log(io.FileIO):
    """Takes everything; what the disk does not take is lost."""

    def __init__(self, descriptor: int, name: str, on_lost: Callable[[OSError], None]) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.name = name
        self._on_lost = on_lost

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._on_lost(error)
            return memoryview(data).nbytes


def keep_from_failing(on_lost: Callable[[OSError], None]) -> None:
    """Put streams that never fill up in place of sys.stdout and sys.stderr, where those are files."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper) and _is_file(stream):
            stream.flush()
            raw = _Log(stream.fileno(), f"<{name}>", on_lost)
            unfailing = io.TextIOWrapper(
                # With PYTHONUNBUFFERED there is no buffer in between.
                raw if isinstance(stream.buffer, io.RawIOBase) else io.BufferedWriter(raw),
                encoding=stream.encoding,
                errors=stream.errors,
                newline="\n",
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            unfailing.mode = stream.mode  # type: ignore[misc]
            setattr(sys, name, unfailing)
            setattr(sys, f"__{name}__", unfailing)


def _is_file(stream: io.TextIOWrapper) -> bool:
    mode = os.fstat(stream.fileno()).st_mode
    return not (stream.isatty() or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))
