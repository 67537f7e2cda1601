"""The time of each pass over a DataLoader, in segments: each belongs to the pass that was entered last.

Time in the model's eval mode is set aside: only the steps around it show whether it is training (``step_table``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddp_ladder_instrument.loops import NEVER, Loop
from ddp_ladder_instrument.phases import Phases
from ddp_ladder_instrument.step_table import Parts, StepTable

if TYPE_CHECKING:
    from ddp_ladder_instrument.cuda import CudaTimeline, Mark, Segment


class PassTimer:
    """The running segment, and the state of the model's eval mode. Seconds: time.perf_counter().

    loop: the pass that was entered last and is not over; the running segment belongs to it.
    after: owns the time after a pass. outside: owns the time of a training loop without a DataLoader.
    between, within: own the time in eval mode, before and after the batch of the running step was drawn.
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
        self.after, self.outside, self.between, self.within = (Loop(lambda: None, NEVER) for _ in range(4))
        self.outside.begin_step(0)
        self.loop: Loop | None = self.outside
        self._begin_s = time.perf_counter()
        self._begin_mark: Mark | None = None
        self._evaluated: Loop | None = None  # the pass whose segment eval() ended
        self._aside = self.between  # the owner of the time since eval()
        self._aside_before: tuple[float, int] = (0.0, 0)  # its seconds and segments at eval()
        self._validation: Loop | None = None  # the pass that began since eval()
        self._resumed: Loop | None = None  # where the time since train() goes if it leads to no step but to a batch

    def started(self) -> None:
        """Discard the time so far, if no step was made: it was start-up, also for a loop without a DataLoader."""
        if self._table.count == 0 and self.loop is self.outside:
            self._own(self.outside, time.perf_counter())
            self.outside.begin_step(0)

    def enter(self, loop: Loop, now_s: float) -> None:
        """Make this pass the active one."""
        if self.loop is self.after:  # that time was between two passes and belongs to no step, or follows eval mode
            self.loop = self._resumed
        if loop.before is None:
            loop.before = self.loop
        if self.evaluating and loop.step < 0:  # it begins
            self._validation = self._validation or loop
        self._resumed = None
        self._own(loop, now_s)

    def leave(self, loop: Loop) -> None:
        """Return to the pass before this one, which is over."""
        if self.loop is loop:
            self._own(self._return_to(loop.before) or self.after, time.perf_counter())
            self._resumed = None
        loop.before = None

    def eval_mode(self) -> None:
        """Set the time from now on aside: the trained model was put in eval mode."""
        if self.evaluating:
            return
        self.evaluating = True
        self.paused_at = count = self._table.count
        if count:
            self._phases.begin_evaluation()
        self._evaluated = owner = self.loop
        self._validation = None
        drawn = owner is not None and owner.is_drawn(count)
        self._aside = aside = self.within if drawn else self.between
        if aside.step != count:
            aside.begin_step(count)
        self._aside_before = (aside.carried_s, len(aside.carried_segments))
        # Between two steps, the time since the last one is as little training as what follows.
        self._own(aside, time.perf_counter(), None if drawn or owner is None or owner is self.outside else aside)

    def train_mode(self) -> None:
        """Resume the time of the training: its model was put in training mode."""
        if not self.evaluating:
            return
        self.evaluating = False
        if self.loop is self._aside:
            self._own(self._return_to(self._evaluated) or self.after, time.perf_counter())
        if self._validation is None:
            self._resumed = self._aside
        else:
            self._aside.carried_s, segments = self._aside_before
            del self._aside.carried_segments[segments:]
        self._phases.end_evaluation(self._aside is self.within, self._validation)

    def trained_in_eval_mode(self) -> None:
        """Give the time since eval() back to the training: a step in eval mode shows that it was no validation."""
        if self.loop is self._aside:
            self.loop = self._evaluated
        self.evaluating = False
        self._phases.drop_evaluation()

    def _return_to(self, loop: Loop | None) -> Loop | None:
        """Return the owner of the time after an interruption of ``loop``: that pass, if in the middle of a step."""
        if loop is self._aside:
            return loop if self.evaluating else None
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

    def extend_row(self, trained: Sequence[Loop], aside: Sequence[Loop], now_s: float, mark: Mark | None) -> None:
        """Add the time up to now to the last row, which trained on these passes."""
        seconds, segments = self.collect([*(trained or [self.outside]), self.after], aside, now_s, mark)
        self._table.extend(seconds)
        if self.timeline is not None:
            self.timeline.extend(self._table.count - 1, segments)

    def collect(
        self, owners: Sequence[Loop], aside: Sequence[Loop], now_s: float, mark: Mark | None
    ) -> tuple[Parts[float], Parts[list[Segment]]]:
        """Take and return the seconds and segments of a row up to now, when the next segment begins.

        owners: whose time is training. aside: passes whose time is set aside, as that in eval mode is.
        """
        train_s, train = self._take(owners, now_s, mark)
        between_s = within_s = 0.0
        between: list[Segment] = []
        within: list[Segment] = []
        if aside or self._table.count in (self.between.step, self.within.step):
            between_s, between = self._take((self.between, *aside), now_s, mark)
            within_s, within = self._take((self.within,), now_s, mark)
        self._begin_s = now_s
        self._begin_mark = mark
        self._resumed = None
        return (train_s, between_s, within_s), (train, between, within)

    def _take(self, owners: Sequence[Loop], now_s: float, mark: Mark | None) -> tuple[float, list[Segment]]:
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
        return seconds, segments
