"""The files that this process opens, and the directories that it lists, while a test looks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_events: list[tuple[str, str]] | None = None


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _events is not None and event in ("open", "os.scandir", "os.listdir") and not isinstance(arguments[0], int):
        _events.append((event, str(arguments[0])))


sys.addaudithook(_note)


@contextmanager
def opened() -> Iterator[list[tuple[str, str]]]:
    """Yield the list to which each event in the block is added, with its path."""
    global _events
    _events = events = []
    try:
        yield events
    finally:
        _events = None
