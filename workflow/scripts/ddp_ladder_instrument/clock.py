"""The step clock: one row per training step with its samples, its time and its wait for data.

A step ends with an optimizer's step. A further step of an optimizer belongs to the same row

- if no gradient was computed since the last one (an optimizer that another one calls for each group of parameters);
- if another optimizer than the first one of the row makes it (a GAN's second one);
- if no batch was drawn since, from a pass that goes on: several steps on one batch are one step of the training.

A step's time is that of its training passes (module ``batches``): validation is another pass. The time between two
passes, or between the model's ``eval()`` and ``train()``, belongs to no step. But eval mode is training if the step's
batch had been drawn and no pass begins meanwhile (adversarial examples, a rollout on the batch).
A step between the end of a pass and the next pass (its last batch was drawn ahead, or ends an accumulation) gets the
time since that end. A training loop without a DataLoader gets the time that belongs to no pass.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ddp_ladder_instrument.batches import NEVER, BackwardPasses, Loop, Phases, StepBatches, StepTable

if TYPE_CHECKING:
    from ddp_ladder_instrument.torch_facts import CudaTimeline, Mark, Segment

MOST_STEPS = 1000
"""Steps of one optimizer on one batch in a row: a pass that is not over may yield no further batch."""
EARLY_STEPS = 12
"""Batches of these steps are looked at as a whole."""


class OptimizerSteps:
    """The optimizers that step in a row.

    calls: the number of steps of all optimizers. known: the optimizers that have stepped.
    in_row, in_row_before: the number of steps in the last row, and in the one before it.
    on_new: called with each optimizer before its first step is counted.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.on_new: Callable[[Any], None] = lambda optimizer: None
        self.known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._last: Callable[[], Any] = lambda: None
        self._row_optimizer: Callable[[], Any] = lambda: None
        self.in_row = 0
        self.in_row_before = 0

    def count(self, optimizer: Any) -> None:
        """Count a step of this optimizer."""
        self.calls += 1
        if self._last() is not optimizer:
            if optimizer not in self.known:
                self.known.add(optimizer)
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

    def extend_row(self) -> None:
        """Note that the step that was counted last belongs to the last row."""
        self.in_row += 1

    @property
    def all_stepped(self) -> bool:
        """True if there were as many steps in this row as in the one before."""
        return self.in_row >= self.in_row_before


class PassTimer:
    """The time of each pass over a DataLoader, in segments: each belongs to the pass that was entered last.

    Seconds: time.perf_counter().

    loop: the pass that was entered last and is not over; the running segment belongs to it. None: to no step.
    after: owns the time after a pass. outside: owns the time of a training loop without a DataLoader.
    evaluating, between_steps: the model is in eval mode; and had been put there before the step's batch was drawn.
    timeline: also times the segments on the GPU. without_loader: no step had a DataLoader so far.
    paused_at: the number of steps when the training mode last ended.
    """

    def __init__(self, table: StepTable, phases: Phases) -> None:
        self._table = table
        self._phases = phases
        self.timeline: CudaTimeline | None = None
        self.evaluating = self.between_steps = False
        self.without_loader = True
        self.paused_at = -1
        self.after, self.outside = Loop(lambda: None, NEVER), Loop(lambda: None, NEVER)
        self.outside.begin_step(0)
        self.loop: Loop | None = self.outside
        self._begin_s = time.perf_counter()
        self._begin_mark: Mark | None = None
        self._evaluated: Loop | None = None  # the pass whose segment eval() ended
        self._evaluated_with: tuple[float, int] = (0.0, 0)  # its seconds and segments at eval()
        self._validation: Loop | None = None  # the pass that began since eval()

    def started(self) -> None:
        """Discard the time so far, if no step was made: it was start-up, also for a loop without a DataLoader."""
        if self._table.count == 0 and self.loop is self.outside:
            self._own(self.outside, time.perf_counter())
            self.outside.begin_step(0)

    def enter(self, loop: Loop, now_s: float) -> None:
        """Make this pass the active one."""
        if self.loop is self.after:  # that time was between two passes, or followed eval mode: it belongs to no step
            self.loop = None
        if loop.before is None:
            loop.before = self.loop
        if self.evaluating and loop.step < 0:  # it begins
            self._validation = self._validation or loop
        self._own(loop, now_s)

    def leave(self, loop: Loop) -> None:
        """Return to the pass before this one, which is over."""
        if self.loop is loop:
            self._own(self._return_to(loop.before), time.perf_counter())
        loop.before = None

    def eval_mode(self) -> None:
        """Note that the trained model was put in eval mode: the time from now on may be a validation."""
        if self.evaluating:
            return
        self.evaluating = True
        self.paused_at = count = self._table.count
        if count:
            self._phases.begin_evaluation()
        self._evaluated = owner = self.loop
        self._validation = None
        self.between_steps = owner is None or not owner.is_drawn(count)
        if not self.between_steps:
            self._own(owner, time.perf_counter())
        else:
            if owner is not self.outside:  # the time since the last step is as little training as what follows
                self.loop = None
            self._own(None, time.perf_counter())
        self._evaluated_with = (owner.carried_s, len(owner.carried_segments)) if owner is not None else (0.0, 0)

    def train_mode(self) -> None:
        """Resume the time of the training: its model was put in training mode."""
        if not self.evaluating:
            return
        self.evaluating = False
        self._own(self._return_to(self._evaluated), time.perf_counter())
        if self.between_steps or self._validation is not None:
            self._phases.end_evaluation(self._validation)
        else:
            self._phases.drop_evaluation()
        if self._validation is not None and self._evaluated is not None and not self.between_steps:
            self._evaluated.carried_s, segments = self._evaluated_with
            del self._evaluated.carried_segments[segments:]

    def trained_in_eval_mode(self) -> None:
        """Give the time since eval() back to the training: a step in eval mode shows that it was no validation."""
        if self.loop is None:
            self.loop = self._evaluated
        self.evaluating = False
        self._phases.drop_evaluation()

    def _return_to(self, loop: Loop | None) -> Loop | None:
        """Return the owner of the time after an interruption of ``loop``: that pass, if in the middle of a step."""
        if loop is self.outside and self.without_loader:
            return loop
        if loop is not None and loop.living and loop.is_drawn(self._table.count):
            return loop
        return None if self.evaluating else self.after

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

    def extend_row(self, owners: Sequence[Loop], now_s: float, mark: Mark | None) -> None:
        """Add the time of these passes up to now to the last row."""
        seconds, segments = self.collect(owners, now_s, mark)
        self._table.extend(seconds)
        if self.timeline is not None:
            self.timeline.extend(self._table.count - 1, segments)

    def collect(self, owners: Sequence[Loop], now_s: float, mark: Mark | None) -> tuple[float, list[Segment]]:
        """Take and return the seconds and segments of a row up to now, when the next segment begins.

        owners: whose time is training.
        """
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


class StepClock:
    """The clock that the hooks notify; each part of it has its own class. Seconds are from time.perf_counter().

    on_batch: called with the pass and each batch that it yields during the first EARLY_STEPS.
    read_times: called after step ``read_at``; returns the next such step.
    count_flops: called after the step ``count_at``; returns the next such step.
    check_limits: called with step and current time at step ``check_at``; returns the next such step.
    """

    def __init__(self, samples_per_step: int | None = None) -> None:
        self.table = StepTable()
        self.phases = Phases()
        self.timer = PassTimer(self.table, self.phases)
        self.backwards = BackwardPasses()
        self.optimizers = OptimizerSteps()
        self.batches = StepBatches(self.table, self.phases, self.backwards, samples_per_step)
        self.grad_enabled: Callable[[], bool] = lambda: True
        self.on_batch: Callable[[Loop, object], None] = lambda loop, batch: None
        self.read_at = NEVER
        self.read_times: Callable[[int], int] = lambda step: NEVER
        self.count_at = NEVER
        self.count_flops: Callable[[int], int] = lambda step: NEVER
        self.check_at = NEVER
        self.check_limits: Callable[[int, float], int] = lambda step, now_s: NEVER
        self.joins = False  # this process is in init_process_group()
        self.on_joins: Callable[[bool], None] = lambda joins: None
        self.pipeline_stage: int | None = None  # the first that this rank holds; None: the model is no pipeline
        self._ended = False
        self._drew = (False, False)  # the row before the last one, if any, drew a batch; so did the last one
        self._row_had_gradients = False  # a backward pass was made before the step that began the last row

    def yielded(self, loop: Loop, entered_s: float, size: int, left_out: int = 0) -> None:
        """Count a batch of ``size`` indices, padding included, that the active pass yielded without ``left_out``."""
        self.batches.add(loop, size, left_out)
        loop.without_grad = not self.grad_enabled()
        loop.in_eval_mode = self.timer.evaluating
        loop.between_steps = loop.in_eval_mode and self.timer.between_steps
        loop.wait_s += time.perf_counter() - entered_s

    def left(self, loop: Loop) -> None:
        """End a pass that is exhausted or abandoned."""
        self.batches.end_pass(loop)
        loop.iterator = None
        self.timer.leave(loop)

    def before_backward(self) -> Callable[[], None] | None:
        """Count a backward pass that begins; return a function to call after it, if any."""
        self.batches.drop_remainders(self.optimizers.known)
        self.backwards.count += 1
        return self._after_backward if self.batches.is_after_a_pass() else None

    def _after_backward(self) -> None:
        """Give the time up to now to the pass that is over: its backward pass has just ended."""
        over = [loop for loop in self.batches.pending if not loop.living]
        if over:
            self.timer.give_after_to(over[-1])

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Add a row, or extend the last one; torch calls this after each optimizer step."""
        now_s = time.perf_counter()
        if self._ended:  # the script caught our SystemExit and continues
            self.check_limits(self.table.count, now_s)
        self.optimizers.count(optimizer)
        mark = None
        if self.timer.timeline is not None:
            mark = self.timer.timeline.mark()
            if mark is None:  # captured into a CUDA graph: no step was made
                return
        if self.timer.evaluating:
            self.timer.trained_in_eval_mode()
        batches = self.batches
        loops = batches.training()
        if not loops and self.table.count and self._continues_row(optimizer):
            self._extend_row(now_s, mark)
        else:
            self._add_row(loops or batches.drawn_ahead(), now_s, mark)
        batches.end_step()
        if self.table.count >= min(self.read_at, self.count_at, self.check_at):
            self._call_back(now_s)

    def _call_back(self, now_s: float) -> None:
        if self.table.count >= self.read_at:
            self.read_at = self.read_times(self.table.count)
        if self.table.count >= self.count_at:
            self.count_at = self.count_flops(self.table.count)
        # With several optimizers, check only after the last of them has stepped.
        if self.table.count >= self.check_at and self.optimizers.all_stepped:
            self._ended = True  # remains True if the check raises
            self.check_at = self.check_limits(self.table.count, now_s)
            self._ended = False

    def _continues_row(self, optimizer: Any) -> bool:
        """Return True if this step, for which no batch was drawn, belongs to the last row."""
        batches, steps = self.batches, self.optimizers.in_row
        if self.optimizers.is_another(optimizer):
            return True
        if self._row_had_gradients and not self.backwards.is_seen:
            return steps < MOST_STEPS
        if batches.samples_per_step is not None and not all(self._drew):
            return False
        if batches.drawn_ahead():
            return False
        if any(loop.living for loop in batches.trained):
            return steps < MOST_STEPS
        return steps < self.optimizers.in_row_before  # the last batch of a pass

    def _add_row(self, loops: list[Loop], now_s: float, mark: Mark | None) -> None:
        samples, padding, wait_s = self.batches.count_samples(loops)
        if self.pipeline_stage:  # the ranks with the first stage count the samples for all
            samples = padding = 0
        seconds, segments = self.timer.collect(self._owners(loops), now_s, mark)
        if self.timer.timeline is not None:
            self.timer.timeline.add(self.table.count, segments)
            self.timer.timeline.harvest(self.table.step_time_s)
        self.table.add(samples, padding, seconds, wait_s)
        self.backwards.end_row()
        if loops:
            self.batches.trained = loops
            self.timer.without_loader = False
        self._drew = (self._drew[1] or self.table.count == 1, bool(loops))
        self._row_had_gradients = self.backwards.is_seen
        self.optimizers.end_row()

    def _owners(self, loops: list[Loop]) -> list[Loop]:
        """Return the passes whose time a step gets; if loaders alternate, the previous one has the time until this."""
        trained, pending, timer = self.batches.trained, self.batches.pending, self.timer
        if loops and loops == trained == pending and timer.loop is not timer.after:
            return loops
        before = [loop for loop in trained if loop not in loops and (loop.living or not loops)]
        dropped = [loop for loop in pending if loop.dropped]  # they took time
        return [*dict.fromkeys([*before, *dropped, *self._beside(loops), *(loops or [timer.outside]), timer.after])]

    def _beside(self, loops: list[Loop]) -> list[Loop]:
        """Return the other passes that yielded for a step and go on: what followed their batches leads to the step."""
        return [loop for loop in self.batches.pending if loop not in loops and loop.living and not loop.between_steps]

    def _extend_row(self, now_s: float, mark: Mark | None) -> None:
        trained = self.batches.trained
        owners = [*(trained or [self.timer.outside]), *self._beside(trained), self.timer.after]
        self.timer.extend_row(owners, now_s, mark)
        self.batches.drop_pending()
        self.optimizers.extend_row()
