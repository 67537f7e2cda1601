"""Atomic writes: a reader sees the old file or the new one, never a partial file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path


def write_atomically(path: Path, parts: Iterable[str | bytes], durable: bool = True) -> str:
    """Write the parts as one file and return the sha256 of its bytes. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Only one rank writes a given path, so the process id makes the name unique.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    digest = hashlib.sha256()
    try:
        with open(temporary, "wb") as file:
            for part in parts:
                data = part if isinstance(part, bytes) else part.encode("utf-8")
                digest.update(data)
                file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return digest.hexdigest()
