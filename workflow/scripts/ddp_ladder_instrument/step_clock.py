"""The step clock: one row per training step with its samples, its time and its wait for data.

A step ends with an optimizer's step. A further step of an optimizer belongs to the same row

- if no gradient was computed since the last one (an optimizer that another one calls for each group of parameters);
- if another optimizer than the first one of the row makes it (a GAN's second one);
- if no batch was drawn since, from a pass that goes on: several steps on one batch are one step of the training;
- with samples_per_step, where rows without a batch show that nobody sees the batches, if another optimizer has still
  to step, as it did before.

A step's time is that of its training passes (module ``loops``): validation is another pass. The time between two
passes, or between the model's ``eval()`` and ``train()``, belongs to no step, unless eval mode recurs in most steps.
A step between the end of a pass and the next pass (its last batch was drawn ahead, or ends an accumulation) gets the
time since that end. A training loop without a DataLoader gets the time that belongs to no pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ddp_ladder_instrument.gradients import BackwardPasses
from ddp_ladder_instrument.loader_threads import LoaderThreads
from ddp_ladder_instrument.loops import NEVER, Loop
from ddp_ladder_instrument.optimizer_steps import OptimizerSteps
from ddp_ladder_instrument.pass_timer import PassTimer
from ddp_ladder_instrument.phases import Phases
from ddp_ladder_instrument.step_batches import StepBatches
from ddp_ladder_instrument.step_table import StepTable

if TYPE_CHECKING:
    from ddp_ladder_instrument.cuda import Mark

TICK_INTERVAL_S = 0.25
MOST_STEPS = 1000
"""Steps of one optimizer on one batch in a row: a pass that is not over may yield no further batch."""
MOST_FIRST_STEPS = 100
"""The same in the first row: another optimizer that exists may never step."""
EARLY_STEPS = 12
"""The tick runs at each of the first steps: some of what it looks for happens only there."""


class StepClock:
    """The clock that the hooks notify; each part of it has its own class. Seconds are from time.perf_counter().

    on_batch: called with the pass and each batch that it yields during the first EARLY_STEPS.
    on_tick: called with the current time at a step's end, every TICK_INTERVAL_S.
    read_times: called after step ``read_at``; returns the next such step.
    check_limits: called with step and current time at step ``check_at``; returns the next such step.
    """

    def __init__(self, samples_per_step: int | None = None) -> None:
        self.table = StepTable()
        self.phases = Phases()
        self.timer = PassTimer(self.table, self.phases)
        self.threads = LoaderThreads()
        self.backwards = BackwardPasses()
        self.optimizers = OptimizerSteps(self.backwards.optimizers)
        self.batches = StepBatches(self.table, self.phases, self.backwards, samples_per_step)
        self.grad_enabled: Callable[[], bool] = lambda: True
        self.on_batch: Callable[[Loop, object], None] = lambda loop, batch: None
        self.on_tick: Callable[[float], None] = lambda now_s: None
        self.read_at = NEVER
        self.read_times: Callable[[int], int] = lambda step: NEVER
        self.check_at = NEVER
        self.check_limits: Callable[[int, float], int] = lambda step, now_s: NEVER
        self._ended = False
        self._tick_at_s = 0.0
        self._drew = (False, False)  # the row before the last one, if any, drew a batch; so did the last one
        self._row_had_gradients = False  # a backward pass was made before the step that began the last row

    def yielded(self, loop: Loop, entered_s: float, size: int) -> None:
        """Count a batch of ``size`` samples, padding included, that the active pass yielded."""
        self.batches.add(loop, size)
        loop.without_grad = not self.grad_enabled()
        loop.in_eval_mode = self.timer.evaluating
        loop.wait_s += time.perf_counter() - entered_s

    def left(self, loop: Loop) -> None:
        """End a pass that is exhausted or abandoned."""
        self.batches.end_pass(loop)
        loop.iterator = None
        self.timer.leave(loop)

    def received(self, batches: Sequence[tuple[Loop, int]], entered_s: float) -> None:
        """Count batches that a training thread got from the one that drew them; it waited since ``entered_s``."""
        for loop, size in batches:
            if not loop.received:
                self.batches.end_others(loop)
            loop.received += 1
            if self.timer.loop is not loop:
                self.timer.enter(loop, entered_s)
            self.yielded(loop, entered_s, size)
            entered_s = time.perf_counter()
            if loop.exhausted and loop.received == loop.given:
                self.batches.end_pass(loop)

    def waited(self, loop: Loop, entered_s: float) -> None:
        """Count a wait of the training for a batch of this pass that brought none."""
        if not loop.living:
            self.left(loop)
            return
        if loop.step != self.table.count:
            loop.begin_step(self.table.count)
        loop.wait_s += time.perf_counter() - entered_s

    def exhausted(self, loop: Loop) -> None:
        """Note that the other thread has finished or abandoned the pass; the training may lag behind."""
        loop.exhausted = True
        if loop.received == loop.given:
            self.batches.end_pass(loop)

    def before_backward(self) -> Callable[[], None] | None:
        """Count a backward pass that begins; return a function to call after it, if any."""
        if self.threads.background:
            self.received(self.threads.take_to_train(), time.perf_counter())
        return self._after_backward if self.backwards.begin(self.batches.pending) else None

    def _after_backward(self) -> None:
        """Give the time up to now to the pass that is over: its backward pass has just ended."""
        self.backwards.look_at_gradient()
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
        if self.threads.background and not batches.pending:
            self._look_for_batches(optimizer)
        if len(batches.pending) > 1:
            self.backwards.drop_untrained(batches.pending)
        loops = batches.training()
        if not loops and self.table.count and self._continues_row(optimizer):
            self._extend_row(now_s, mark)
        else:
            self._add_row(loops or batches.drawn_ahead(), now_s, mark)
        batches.end_step()
        if now_s >= self._tick_at_s or self.table.count >= min(self.read_at, self.check_at):
            self._call_back(now_s)

    def _call_back(self, now_s: float) -> None:
        if self.table.count >= self.read_at:
            self.read_at = self.read_times(self.table.count)
        if now_s >= self._tick_at_s:
            if self.table.count > EARLY_STEPS:
                self._tick_at_s = now_s + TICK_INTERVAL_S
            self.on_tick(now_s)
        # With several optimizers, check only after the last of them has stepped.
        if self.table.count >= self.check_at and self.optimizers.all_stepped:
            self._ended = True  # remains True if the check raises
            self.check_at = self.check_limits(self.table.count, now_s)
            self._ended = False

    def _look_for_batches(self, optimizer: Any) -> None:
        """Find the batches of a step for which none came: other threads may hand them over unseen."""
        if self.threads.holds():
            self.received(self.threads.take_to_train(), time.perf_counter())
        elif not (self.table.count and (self.optimizers.is_another(optimizer) or self.batches.drawn_ahead())):
            for held in self.threads.take_unseen():
                self.received(held, time.perf_counter())

    def _continues_row(self, optimizer: Any) -> bool:
        """Return True if this step, for which no batch was drawn, belongs to the last row."""
        batches, steps = self.batches, self.optimizers.in_row
        if self.optimizers.is_another(optimizer):
            return True
        if self._row_had_gradients and not self.backwards.is_seen:
            return steps < MOST_STEPS
        if batches.samples_per_step is not None and not all(self._drew):
            first = self.table.count == 1
            return self.optimizers.awaits_another(first) and steps < (MOST_FIRST_STEPS if first else MOST_STEPS)
        if batches.drawn_ahead():
            return False
        if any(loop.living for loop in batches.trained):
            return steps < MOST_STEPS
        return steps < self.optimizers.in_row_before  # the last batch of a pass

    def _add_row(self, loops: list[Loop], now_s: float, mark: Mark | None) -> None:
        samples, padding, wait_s = self.batches.count_samples(loops)
        owners = self._owners(loops)
        seconds, segments = self.timer.collect(owners, self._aside(owners), now_s, mark)
        if self.timer.timeline is not None:
            self.timer.timeline.add(self.table.count, segments)
            self.timer.timeline.harvest(self.table.times_s)
        self.table.add(samples, padding, seconds, wait_s)
        if loops:
            self.batches.trained = loops
            self.timer.without_loader = False
        self._drew = (self._drew[1] or self.table.count == 1, bool(loops))
        self._row_had_gradients = self.backwards.is_seen
        self.optimizers.end_row()

    def _owners(self, loops: list[Loop]) -> list[Loop]:
        """Return the passes whose time a step gets; if loaders alternate, the previous one has the time until this."""
        trained, timer = self.batches.trained, self.timer
        if loops and loops == trained and timer.loop is not timer.after:
            return loops
        before = [loop for loop in trained if loop not in loops and (loop.living or not loops)]
        dropped = [loop for loop in self.batches.pending if loop.dropped and loop not in before]  # they took time
        return [*before, *dropped, *(loops or [timer.outside]), timer.after]

    def _aside(self, owners: list[Loop]) -> list[Loop]:
        """Return the passes that go on and were drawn in eval mode or without gradients: a rollout's, or validation."""
        pending = self.batches.pending
        return [] if pending == owners else [loop for loop in pending if loop.living and loop not in owners]

    def _extend_row(self, now_s: float, mark: Mark | None) -> None:
        trained = self.batches.trained
        self.timer.extend_row(trained, self._aside(trained), now_s, mark)
        self.batches.drop_pending()
        self.optimizers.extend_row()
