"""The steps of the optimizers: the first one ends a row, and others that step on the same batch extend it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class OptimizerSteps:
    """The optimizers that step in a row.

    calls: the number of steps of all optimizers. known: the optimizers that have stepped.
    on_new: called with each optimizer before its first step is counted.
    """

    def __init__(self, known: weakref.WeakSet[Any]) -> None:
        self.calls = 0
        self.on_new: Callable[[Any], None] = lambda optimizer: None
        self._known = known
        self._last: Callable[[], Any] = lambda: None
        self._row_optimizer: Callable[[], Any] = lambda: None
        self._in_row = 0
        self._in_row_before = 0

    def count(self, optimizer: Any) -> None:
        """Count a step of this optimizer."""
        self.calls += 1
        if self._last() is not optimizer:
            if optimizer not in self._known:
                self._known.add(optimizer)
                self.on_new(optimizer)
            self._last = weakref.ref(optimizer)

    def is_another(self, optimizer: Any) -> bool:
        """Return True if another optimizer ended the last row."""
        first = self._row_optimizer()
        return first is not None and first is not optimizer

    def end_row(self) -> None:
        """Note that the step that was counted last ends a row."""
        self._row_optimizer = self._last
        self._in_row_before = self._in_row
        self._in_row = 1

    def extend_row(self) -> None:
        """Note that the step that was counted last belongs to the last row."""
        self._in_row += 1

    @property
    def all_stepped(self) -> bool:
        """True if as many optimizers have stepped in this row as in the one before."""
        return self._in_row >= self._in_row_before
