"""Whose time it is: of which pass over a DataLoader, or of no step; and which optimizers step in a row. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple, Optional

from ddp_ladder_instrument.contract import LONG_REST_S
from ddp_ladder_instrument.table import RECENT, Phases, StepTable
from ddp_ladder_instrument.trained import AFTER, OUTSIDE, Pass

TIMES_REST, TIMES_STEP = 5.0, 0.5
"""A rest that is so many times longer than the usual one, and so many usual steps long, is beside the training."""
LEAST_RESTS = 5
"""Rests after which the median of those so far is taken for the usual one."""


class UsualTurn(NamedTuple):
    """Medians of a run, in seconds. rest_s: from a step to the draw of the next one's first batch.

    rare: loaders that draw with gradients off, in eval mode, or at places that never train, for fewer than half of the
    steps: such a pass is a validation, though it may go on at the next one. short: passes without a step that end
    before the next.
    """

    rest_s: float
    step_s: float
    rare: frozenset[int]
    short: frozenset[int]


class PassTimer:
    """The time of each pass over a DataLoader, in segments: each belongs to the pass that was entered last."""

    def __init__(self, table: StepTable, phases: Phases, usual: Optional[UsualTurn] = None) -> None:
        self._table = table
        self._phases = phases
        self.evaluating = False  # the model is in eval mode
        self.between_steps = False  # and had been put there before the step's batch was drawn
        self.without_loader = True  # no step had a DataLoader so far
        self._usual = usual  # of the whole run; None: not known yet
        self._rests_s: deque[float] = deque(maxlen=RECENT)
        self._resting: Pass | None = None  # the pass that went on after the last step, until the next draw
        self._rest_began_s = 0.0
        self._steps_of: Counter[int] = Counter()  # of each loader: steps for which it drew what may be no training
        self._last_of: dict[int, int] = {}  # the last of them
        self._short: set[int] = set()
        self.paused_at = -1  # the number of steps when the training mode last ended
        self.after = Pass(AFTER)  # owns the time after a pass
        self.outside = Pass(OUTSIDE)  # owns the time of a training loop without a DataLoader
        self.outside.begin_step(0)
        # The pass that was entered last and is not over: the running segment belongs to it. None: to no step.
        self.owner: Pass | None = self.outside
        self._begin_s = 0.0
        self._evaluated: Pass | None = None  # the pass whose segment eval() ended
        self._evaluated_with = 0.0, 0.0  # its seconds at eval()
        self._validation: Pass | None = None  # the pass that began since eval()

    def restart(self, now_s: float) -> None:
        """Discard the time so far, if no step was made: it was start-up, also for a loop without a DataLoader."""
        if self._table.count == 0 and self.owner is self.outside:
            self._own(self.outside, now_s)
            self.outside.begin_step(0)

    def enter(self, pass_: Pass, now_s: float) -> None:
        """Make this pass the active one."""
        if self.owner is self.after:  # that time was between two passes, or followed eval mode: it belongs to no step
            self.owner = None
        if pass_.before is None:
            pass_.before = self.owner
        if self.evaluating and pass_.step < 0:  # it begins
            self._validation = self._validation or pass_
        self._own(pass_, now_s)

    def leave(self, pass_: Pass, now_s: float) -> None:
        """Return to the pass before this one, which is over."""
        if self.owner is pass_:
            self._own(self._return_to(pass_.before), now_s)
        elif pass_.stepped and self.owner is not None and self.owner.number >= 0:  # one that is drawn from beside it
            self._own(self._return_to(self.owner), now_s)
        pass_.before = None

    def eval_mode(self, now_s: float) -> None:
        """Note that the trained model was put in eval mode: the time from now on may be a validation."""
        if self.evaluating:
            return
        self.evaluating = True
        self.paused_at = count = self._table.count
        if count:
            self._phases.begin_evaluation(now_s)
        self._evaluated = owner = self.owner
        self._validation = None
        self.between_steps = owner is None or not owner.is_drawn(count)
        if not self.between_steps:
            self._own(owner, now_s)
        else:
            if owner is not self.outside:  # the time since the last step is as little training as what follows
                self.owner = None
            self._own(None, now_s)
        self._evaluated_with = (owner.carried_s, owner.carried_comm_s) if owner is not None else (0.0, 0.0)

    def train_mode(self, now_s: float) -> None:
        """Resume the time of the training: its model was put in training mode."""
        if not self.evaluating:
            return
        self.evaluating = False
        self._own(self._return_to(self._evaluated), now_s)
        if self.between_steps or self._validation is not None:
            self._phases.end_evaluation(self._validation, now_s)
        else:
            self._phases.drop_evaluation()
        if self._validation is not None and self._evaluated is not None and not self.between_steps:
            self._evaluated.carried_s, self._evaluated.carried_comm_s = self._evaluated_with

    def trained_in_eval_mode(self) -> None:
        """Give the time since eval() back to the training: a step in eval mode shows that it was no validation."""
        if self.owner is None:
            self.owner = self._evaluated
        self.evaluating = False
        self._phases.drop_evaluation()

    def _return_to(self, pass_: Pass | None) -> Pass | None:
        """Return the owner of the time after an interruption of ``pass_``: that pass, if in the middle of a step."""
        if pass_ is self.outside and self.without_loader:
            return pass_
        if pass_ is not None and pass_.living and pass_.is_drawn(self._table.count):
            return pass_
        return None if self.evaluating else self.after

    def give_after_to(self, pass_: Pass, now_s: float) -> None:
        """Give the time since the end of the last pass to this one; before the first step, it has no other owner."""
        if self.owner in (self.after, self.outside):
            self.owner = pass_
            self._own(self.after, now_s)

    def communicate(self, seconds: float) -> None:
        """Note that the owner of the running segment spent so much of it in collectives."""
        owner = self.owner
        if owner is not None:
            if owner.step != self._table.count:
                owner.begin_step(self._table.count)
            owner.carried_comm_s += seconds

    def begin_rest(self, now_s: float) -> None:
        """Note the end of a step: until the next draw, its pass may be interrupted by what is beside the training."""
        self._resting = self.owner if self.owner is not None and self.owner.number >= 0 else None
        self._rest_began_s = now_s

    def end_rest(self, now_s: float | None) -> None:
        """Note the first draw after a step: what the rest took longer than usual, without collectives, is in no step.

        Others wait for this rank in collectives, as it does for them. now_s: None: of a long one, on a GPU whose time
        is not known.
        """
        pass_, self._resting = self._resting, None
        if pass_ is None or now_s is None:
            return
        if pass_ is self.owner:
            self._own(pass_, now_s)
        if pass_.step != self._table.count:  # it was interrupted at once
            return
        rest_s = pass_.carried_s - pass_.carried_comm_s
        if math.isnan(rest_s):
            return
        self._rests_s.append(rest_s)
        if rest_s < LONG_REST_S:
            return
        usual = self.usual_turn() if self._usual is None else self._usual
        if usual is None:
            return
        longer_s = rest_s - usual.rest_s
        if longer_s > max(LONG_REST_S, TIMES_REST * usual.rest_s, TIMES_STEP * usual.step_s):
            pass_.carried_s -= longer_s
            self._phases.rests_s.append((self._rest_began_s, self._rest_began_s + longer_s))

    def usual_turn(self) -> UsualTurn | None:
        """Return what was usual so far; None after few steps."""
        if len(self._rests_s) < LEAST_RESTS:
            return None
        rare = frozenset(loader for loader, steps in self._steps_of.items() if steps < self._table.count / 2)
        return UsualTurn(
            statistics.median(self._rests_s), statistics.median(self._table.recent_s), rare, frozenset(self._short)
        )

    def draws_rarely(self, pass_: Pass) -> bool:
        """Note a draw of what may be no training; return True if its loader makes such ones for few of the steps."""
        loader, count = pass_.loader, self._table.count
        if self._last_of.get(loader) != count:
            self._last_of[loader] = count
            self._steps_of[loader] += 1
        return self.is_rare(pass_)

    def is_rare(self, pass_: Pass) -> bool:
        """Return True if its loader draws for few of the steps; if that is not known, if it never trains."""
        return pass_.is_beside if self._usual is None else pass_.loader in self._usual.rare

    def note_end(self, pass_: Pass) -> None:
        """Note the end of a pass without a step."""
        if pass_.row == self._table.count:
            self._short.add(pass_.number)

    def ends_in_step(self, pass_: Pass) -> bool:
        return self._usual is not None and pass_.number in self._usual.short

    def _own(self, owner: Pass | None, now_s: float) -> None:
        """End the running segment and begin one of ``owner``."""
        before = self.owner
        if before is not None:
            if before.step != self._table.count:
                before.begin_step(self._table.count)
            before.carried_s += now_s - self._begin_s
        self.owner = owner
        self._begin_s = now_s

    def collect(self, owners: Sequence[Pass], now_s: float) -> tuple[float, float]:
        """Take and return the seconds of a row up to now, and those in collectives; the next segment begins now.

        owners: whose time is training.
        """
        seconds = comm_s = 0.0
        for owner in owners:
            if owner.step == self._table.count:
                seconds += owner.carried_s
                comm_s += owner.carried_comm_s
                owner.carried_s = owner.carried_comm_s = 0.0
            if owner is self.owner:
                seconds += now_s - self._begin_s
        self._begin_s = now_s
        return seconds, comm_s


class OptimizerSteps:
    """The optimizers that step in a row."""

    def __init__(self) -> None:
        self.last = self._of_row = -1
        self.in_row = self.in_row_before = 0  # steps in the last row, and in the one before it

    def is_another(self) -> bool:
        """Return True if another optimizer than the last one ended the last row."""
        return self._of_row not in (-1, self.last)

    def end_row(self) -> None:
        self._of_row = self.last
        self.in_row_before = self.in_row
        self.in_row = 1

    @property
    def all_stepped(self) -> bool:
        """True if there were as many steps in this row as in the one before."""
        return self.in_row >= self.in_row_before
