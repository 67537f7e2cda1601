"""The reader of files that others may have made or replaced: a file of the results, or one that a script writes."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 2**31  # of a file that is read at once


def opened(path: Path, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading. Raises OSError, also for a pipe, which could make its reader wait for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb", buffering)
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_bytes(path: Path) -> bytes:
    """Return the content of a file that is read at once: without a buffer, in fewer system calls. Raises OSError."""
    with opened(path, buffering=0) as file:
        if os.fstat(file.fileno()).st_size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES:,} bytes", str(path))
        return file.read()
