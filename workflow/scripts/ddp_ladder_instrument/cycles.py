"""itertools.cycle: it keeps the batches of a pass over a DataLoader and gives them again, which no loader sees."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

On = Callable[[Any, Any, float], None]
"""Receives the cycle, what it has just given, and when it was asked for that."""


class Cycle(itertools.cycle):  # type: ignore[type-arg]
    """Replaces itertools.cycle, also in pickles.

    pass_of: returns the pass over a DataLoader that an iterator makes, if it does. on_next: called for such cycles.
    """

    pass_of: Callable[[Any], Any] = staticmethod(lambda iterator: None)
    on_next: On = staticmethod(lambda cycle, item, entered_s: None)

    def __new__(cls, iterable: Iterable[Any]) -> Any:
        """Make the iterator here: a cycle does not tell what it draws from."""
        iterator = iter(iterable)
        first = Cycle.pass_of(iterator) if cls is Cycle else None
        made: Any = super().__new__(cls if first is None else WatchedCycle, iterator)
        if first is not None:
            made.first, made.sizes, made.repeated = first, [], 0
        return made


class WatchedCycle(Cycle):
    """A cycle of batches. first: the pass that drew them. sizes: theirs. repeated: how many were given again."""

    first: Any
    sizes: list[Any]
    repeated: int

    def __next__(self) -> Any:
        """Return the next batch."""
        entered_s = time.perf_counter()
        batch = super().__next__()
        Cycle.on_next(self, batch, entered_s)
        return batch


Cycle.__module__, Cycle.__name__, Cycle.__qualname__ = "itertools", "cycle", "cycle"


def watch_cycles() -> None:
    """Replace itertools.cycle, before the script imports it by name."""
    itertools.cycle = Cycle  # type: ignore[misc]
