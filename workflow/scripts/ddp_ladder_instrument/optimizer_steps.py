"""The steps of the optimizers: the first one on a batch ends a row, and others on the same batch extend it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class OptimizerSteps:
    """The optimizers that step in a row.

    calls: the number of steps of all optimizers. known: the optimizers that have stepped.
    in_row, in_row_before: the number of steps in the last row, and in the one before it.
    existing: all optimizers that the script has made, also those that have not stepped.
    on_new: called with each optimizer before its first step is counted.
    """

    def __init__(self, known: weakref.WeakSet[Any]) -> None:
        self.calls = 0
        self.on_new: Callable[[Any], None] = lambda optimizer: None
        self._known = known
        self._last: Callable[[], Any] = lambda: None
        self._row_optimizer: Callable[[], Any] = lambda: None
        self.in_row = 0
        self.in_row_before = 0
        self.existing: weakref.WeakSet[Any] = weakref.WeakSet()
        self._has_another = self._had_another = False

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
        self.in_row_before = self.in_row
        self.in_row = 1
        self._had_another, self._has_another = self._has_another, False

    def extend_row(self) -> None:
        """Note that the step that was counted last belongs to the last row."""
        self.in_row += 1
        self._has_another = self._has_another or self._last() is not self._row_optimizer()

    def awaits_another(self, is_first_row: bool) -> bool:
        """Return True if another optimizer has still to step in this row, as it did in the row before."""
        return not self._has_another and (len(self.existing) > 1 if is_first_row else self._had_another)

    @property
    def all_stepped(self) -> bool:
        """True if there were as many steps in this row as in the one before."""
        return self.in_row >= self.in_row_before
