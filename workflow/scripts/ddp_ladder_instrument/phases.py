"""What a rank did when, besides its steps: validations, checkpoints, and the steps that begin an epoch. Unix times."""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import Any, Optional

from ddp_ladder_instrument.loops import Loop
from ddp_ladder_instrument.step_table import StepTable

MOST = 10_000
"""Validations, times in eval mode, saves and epochs that are recorded: one every minute makes 10,000 in a week."""


class Phases:
    """A validation is the time from the model's ``eval()`` to its ``train()``, or a pass on which no step trained.

    Only what ended after the first step is recorded: before it, all is start-up.
    """

    def __init__(self) -> None:
        self._validations_s: list[tuple[float, float, Loop]] = []
        self._evals_s: list[tuple[float, float, bool]] = []  # in which no pass began; True: a batch had been drawn
        self._saves_s: list[tuple[float, float]] = []
        self._epoch_steps: list[int] = []
        self._evaluating_since_s: float | None = None
        self.left_out = 0

    def begin_evaluation(self) -> None:
        """Note that the model was put in eval mode."""
        self._evaluating_since_s = time.time()

    def drop_evaluation(self) -> None:
        """Note that the model trains in eval mode: this was no validation."""
        self._evaluating_since_s = None

    def end_evaluation(self, drawn: bool, loop: Optional[Loop]) -> None:
        """Note that it was put in training mode.

        drawn: the batch of the running step had been drawn. loop: the pass that began in between, if any.
        """
        began_s, self._evaluating_since_s = self._evaluating_since_s, None
        if began_s is None:
            return
        if loop is not None:
            self._add(began_s, loop)
        elif len(self._evals_s) < MOST:
            self._evals_s.append((began_s, time.time(), drawn))

    def end_pass(self, loop: Loop) -> None:
        """Note a pass that ends now without a step. One may follow, if its batches were drawn ahead of it."""
        self._add(loop.began_at_s, loop)

    def _add(self, began_s: float, loop: Loop) -> None:
        if len(self._validations_s) < MOST:
            self._validations_s.append((began_s, time.time(), loop))
        else:
            self.left_out += 1

    def add_save(self, began_s: float) -> None:
        """Note a torch.save that ends now."""
        if len(self._saves_s) < MOST:
            self._saves_s.append((began_s, time.time()))

    def add_epoch(self, step: int) -> None:
        """Add the first step, counted from 1, of a pass over training data."""
        if len(self._epoch_steps) < MOST and self._epoch_steps[-1:] != [step]:
            self._epoch_steps.append(step)

    def count_eval_time(self, table: StepTable) -> None:
        """Count the time in eval mode that is training in the steps of the table; it is no validation."""
        between, within = table.count_eval_time()
        self._evals_s = [
            (begin_s, end_s, drawn)
            for begin_s, end_s, drawn in self._evals_s
            if bisect_left(table.ended_at_s, end_s) not in (within if drawn else between)
        ]

    def summary(self) -> dict[str, Any]:
        """Return the record's ``phases``; an evaluation that is not over ends now."""
        self.end_evaluation(False, None)
        validations_s = [(begin_s, end_s) for begin_s, end_s, loop in self._validations_s if not loop.stepped]
        unknown_s = [(begin_s, end_s) for begin_s, end_s, _ in self._evals_s]
        return {
            "epoch_steps": self._epoch_steps,
            "validations_s": sorted(validations_s + unknown_s),
            "without_a_pass_s": unknown_s,
            "saves_s": self._saves_s,
        }
