"""Reads of small files on a shared file system: a file is read again only if it has changed, and reads are counted."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from ddp_ladder.common.messages import UserError

T = TypeVar("T")
Version = tuple[int, int, int]  # inode, size, time of change in ns


class Files:
    """The files that a view has read. problems: why a file that exists could not be read, by path."""

    def __init__(self) -> None:
        self.reads = 0
        self.problems: dict[Path, str] = {}
        self._read: dict[Path, tuple[Version, Any]] = {}

    def names(self, directory: Path) -> frozenset[str]:
        """Return the names in a directory; empty if it is missing or cannot be read."""
        self.reads += 1
        try:
            found = frozenset(os.listdir(directory))
        except FileNotFoundError:
            found = frozenset()
        except OSError as error:
            self.problems[directory] = f"{directory} cannot be read: {error.strerror}"
            return frozenset()
        self.problems.pop(directory, None)
        return found

    def parsed(self, path: Path, parse: Callable[[Path], T]) -> T | None:
        """Return what ``parse`` makes of the file, None if there is none. As ``read``."""
        return self.read(path, lambda _: parse(path))

    def read(self, path: Path, parse: Callable[[BinaryIO], T]) -> T | None:
        """Return what ``parse`` makes of the open file, None if there is none.

        A file that cannot be parsed is noted, and what was read before still counts: some are not replaced atomically.
        """
        self.reads += 1
        known: tuple[Version, T] | None = self._read.get(path)
        try:
            with path.open("rb") as file:  # opening makes a network file system look for a new version
                now = os.fstat(file.fileno())
                version = (now.st_ino, now.st_size, now.st_mtime_ns)
                if known is None or known[0] != version:
                    known = self._read[path] = (version, parse(file))
        except FileNotFoundError:
            self._read.pop(path, None)
            self.problems.pop(path, None)
            return None
        except (OSError, ValueError, UserError) as error:
            self.problems[path] = _in_one_line(path, error)
        else:
            self.problems.pop(path, None)
        return None if known is None else known[1]


def _in_one_line(path: Path, error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{path} cannot be read: {error.strerror}"
    text = " ".join(str(error).split())
    return text if text.startswith(str(path)) else f"{path}: {text}"
