"""The time of each pass over a DataLoader, in segments: each belongs to the pass that was entered last."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddp_ladder_instrument.loops import NEVER, Loop
from ddp_ladder_instrument.phases import Phases
from ddp_ladder_instrument.step_table import StepTable

if TYPE_CHECKING:
    from ddp_ladder_instrument.cuda import CudaTimeline, Mark, Segment


class PassTimer:
    """The running segment, and the state of the model's eval mode, in which no time runs. Seconds: time.perf_counter().

    loop: the pass that was entered last and is not over; the running segment belongs to it.
    after: owns the time after a pass. outside: owns the time of a training loop without a DataLoader.
    timeline: also times the segments on the GPU. without_loader: no step had a DataLoader so far.
    paused_at: the number of steps when the training mode last ended.
    """

    def __init__(self, table: StepTable, phases: Phases) -> None:
        self._table = table
        self._phases = phases
        self.timeline: CudaTimeline | None = None
        self.evaluating = False
        self.without_loader = True
        self.paused_at = -1
        self.after = Loop(lambda: None, NEVER)
        self.outside = Loop(lambda: None, NEVER)
        self.outside.begin_step(0)
        self.loop: Loop | None = self.outside
        self._begin_s = time.perf_counter()
        self._begin_mark: Mark | None = None
        self._evaluated: Loop | None = None  # the pass whose segment eval() ended

    def started(self) -> None:
        """Discard the time so far, if no step was made: it was start-up, also for a loop without a DataLoader."""
        if self._table.count == 0 and self.loop is self.outside:
            self._own(self.outside, time.perf_counter())
            self.outside.begin_step(0)

    def enter(self, loop: Loop, now_s: float) -> None:
        """Make this pass the active one."""
        if self.loop is self.after:  # that time was between two passes and belongs to no step
            self.loop = None
        if loop.before is None:
            loop.before = self.loop
        self._own(loop, now_s)

    def leave(self, loop: Loop) -> None:
        """Return to the pass before this one, which is over."""
        if self.loop is loop:
            self._own(self._return_to(loop.before) or self.after, time.perf_counter())
        loop.before = None

    def eval_mode(self) -> None:
        """Stop the time of the training: its model was put in eval mode."""
        if not self.evaluating:
            self.evaluating = True
            self.paused_at = self._table.count
            if self.paused_at:
                self._phases.begin_evaluation()
            self._evaluated = owner = self.loop
            if owner is not None and owner is not self.outside and not owner.is_drawn(self._table.count):
                self.loop = None  # between two steps: the time since the last step is no training
            self._own(None, time.perf_counter())

    def train_mode(self) -> None:
        """Resume the time of the training: its model was put in training mode."""
        if self.evaluating:
            self.evaluating = False
            self._phases.end_evaluation()
            if self.loop is None:
                self._own(self._return_to(self._evaluated), time.perf_counter())
            self._evaluated = None

    def trained_in_eval_mode(self) -> None:
        """Give the time since eval() back to the training: a step in eval mode shows that it was no validation."""
        if self.loop is None:
            self.loop = self._evaluated
        self.evaluating = False
        self._phases.end_evaluation(was_training=True)
        self._evaluated = None

    def _return_to(self, loop: Loop | None) -> Loop | None:
        """Return the owner of the time after an interruption of ``loop``: that pass, if in the middle of a step."""
        if loop is self.after or (loop is self.outside and self.without_loader):
            return loop
        return loop if loop is not None and loop.living and loop.is_drawn(self._table.count) else None

    def give_after_to(self, loop: Loop) -> None:
        """Give the time since the end of the last pass to this one."""
        if self.loop is self.after:
            self._own(self.after, time.perf_counter(), loop)

    def _own(self, owner: Loop | None, now_s: float, ending: Loop | None = None) -> None:
        """End the running segment and begin one of ``owner``; the ended one goes to ``ending``, or to its owner."""
        mark = self.timeline.mark() if self.timeline is not None else None
        self._carry(ending or self.loop, now_s, mark)
        self.loop = owner
        self._begin_s = now_s
        self._begin_mark = mark

    def _carry(self, owner: Loop | None, now_s: float, mark: Mark | None) -> None:
        if owner is None:
            return
        if owner.step != self._table.count:
            owner.begin_step(self._table.count)
        owner.carried_s += now_s - self._begin_s
        if self._begin_mark is not None and mark is not None:
            owner.carried_segments.append((self._begin_mark, mark))

    def extend_row(self, trained: Sequence[Loop], now_s: float, mark: Mark | None) -> None:
        """Add the time up to now to the last row, which trained on these passes."""
        seconds, segments = self.collect([*(trained or [self.outside]), self.after], now_s, mark)
        self._table.extend(seconds)
        if segments and self.timeline is not None:
            self.timeline.extend(self._table.count - 1, segments)

    def collect(self, owners: Sequence[Loop], now_s: float, mark: Mark | None) -> tuple[float, list[Segment]]:
        """Take and return the seconds and segments of these owners up to now, when the next segment begins."""
        seconds = 0.0
        segments: list[Segment] = []
        for owner in owners:
            if owner.step == self._table.count:
                seconds += owner.carried_s
                owner.carried_s = 0.0
                if owner.carried_segments:
                    segments += owner.carried_segments
                    owner.carried_segments = []
            if owner is self.loop:
                seconds += now_s - self._begin_s
                if mark is not None and self._begin_mark is not None:
                    segments.append((self._begin_mark, mark))
        self._begin_s = now_s
        self._begin_mark = mark
        return seconds, segments
