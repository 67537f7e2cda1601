"""What a rank did when, besides its steps: its validations, and the steps that begin an epoch. Unix times."""

from __future__ import annotations

import time
from typing import Any, Optional

from ddp_ladder_instrument.loops import Loop

MOST = 10_000
"""Validations, and epochs, that are recorded: a validation every minute makes 10,000 in a week."""


class Phases:
    """A validation is the time from the model's ``eval()`` to its ``train()``, or a pass on which no step trained.

    Only what ended after the first step is recorded: before it, all is start-up.
    """

    def __init__(self) -> None:
        self._validations_s: list[tuple[float, float, Optional[Loop]]] = []
        self._epoch_steps: list[int] = []
        self._evaluating_since_s: float | None = None
        self.left_out = 0

    def begin_evaluation(self) -> None:
        """Note that the model was put in eval mode."""
        self._evaluating_since_s = time.time()

    def end_evaluation(self, was_training: bool = False) -> None:
        """Note that it was put in training mode, or that it trains in eval mode (then this was no validation)."""
        began_s, self._evaluating_since_s = self._evaluating_since_s, None
        if began_s is not None and not was_training:
            self._add(began_s, None)

    def end_pass(self, loop: Loop) -> None:
        """Note a pass that ends now without a step. One may follow, if its batches were drawn ahead of it."""
        self._add(loop.began_at_s, loop)

    def _add(self, began_s: float, loop: Loop | None) -> None:
        if len(self._validations_s) < MOST:
            self._validations_s.append((began_s, time.time(), loop))
        else:
            self.left_out += 1

    def add_epoch(self, step: int) -> None:
        """Add the first step, counted from 1, of a pass over training data."""
        if len(self._epoch_steps) < MOST and self._epoch_steps[-1:] != [step]:
            self._epoch_steps.append(step)

    def summary(self) -> dict[str, Any]:
        """Return the record's ``phases``; a validation that is not over ends now."""
        self.end_evaluation()
        validations_s = [(begin, end) for begin, end, loop in self._validations_s if not (loop and loop.stepped)]
        return {"epoch_steps": self._epoch_steps, "validations_s": validations_s}
