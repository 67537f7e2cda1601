"""Output streams that survive a full disk: the script's output goes to a log file of the ladder."""

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
    """A log file that accepts every write; what does not fit on the disk is lost."""

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
    """Replace sys.stdout and sys.stderr, if they are files, with streams that ignore a full disk."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper) and _is_file(stream):
            stream.flush()
            raw = _Log(stream.fileno(), f"<{name}>", on_lost)
            unfailing = io.TextIOWrapper(
                # With PYTHONUNBUFFERED the stream has no buffer.
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
