"""The step clock: one row per training step with its samples, its time and its wait for data.

A step ends with an optimizer's step. What another optimizer steps before the next batch is drawn
(a GAN's second one) belongs to the same step.

Time is kept in segments, each owned by the pass over a DataLoader that was entered last. A step's
time is that of its training passes (module ``loops``): validation is another pass, and what happens
between two passes, or between the model's ``eval()`` and ``train()``, is nobody's. Loops that draw
from no DataLoader own what no pass owns.
"""

from __future__ import annotations

import time
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ddp_ladder_instrument.loops import Loop, training

if TYPE_CHECKING:
    from ddp_ladder_instrument.cuda import CudaTimeline, Mark, Segment
    from ddp_ladder_instrument.metrics import Row

CSV_HEADER = "step,samples,padding_samples,step_time_s,data_wait_s\n"
NEVER = 2**62
TICK_INTERVAL_S = 0.25
EARLY_STEPS = 12
"""The tick runs at each of the first steps: what it looks for there happens only there."""


class Steps:
    """Rows of steps, and the state between two of them. Seconds are of time.perf_counter().

    samples_per_step: in place of counted samples, for loops that draw from no DataLoader.
    on_optimizer: called with each optimizer before its first step is counted.
    on_batch: called with the pass and each batch that it yields during the first EARLY_STEPS.
    on_loop: called at the first step of each training pass.
    on_tick: called with the present time at a step's end, every TICK_INTERVAL_S.
    loop: the pass that was entered last and is not over; the running segment is its own.
    check_limits: called with step and present time at step ``check_at``, gives the next such step.
    """

    __slots__ = (
        "_begin_mark",
        "_begin_s",
        "_ended",
        "_evaluated",
        "_known",
        "_optimizer",
        "_outside",
        "_pending",
        "_row_loops",
        "_row_optimizer",
        "_steps_in_row",
        "_steps_in_row_before",
        "_tick_at_s",
        "check_at",
        "check_limits",
        "count",
        "data_wait_s",
        "evaluating",
        "first_step_ended_at_s",
        "grad_enabled",
        "loop",
        "on_batch",
        "on_loop",
        "on_optimizer",
        "on_tick",
        "padding_samples",
        "samples",
        "samples_per_step",
        "step_time_s",
        "timeline",
    )

    def __init__(self, samples_per_step: int | None = None) -> None:
        self.samples_per_step = samples_per_step
        self.samples = array("q")
        self.padding_samples = array("q")
        self.step_time_s = array("d")
        self.data_wait_s = array("d")
        self.count = 0
        self.timeline: CudaTimeline | None = None
        self.check_at = NEVER
        self.first_step_ended_at_s: float | None = None
        self.evaluating = False
        self.grad_enabled: Callable[[], bool] = lambda: True
        self.on_optimizer: Callable[[Any], None] = lambda optimizer: None
        self.on_batch: Callable[[Loop, object], None] = lambda loop, batch: None
        self.on_loop: Callable[[Loop], None] = lambda loop: None
        self.on_tick: Callable[[float], None] = lambda now_s: None
        self.check_limits: Callable[[int, float], int] = lambda step, now_s: NEVER
        self._outside = Loop(lambda: None, NEVER)
        self._outside.begin_step(0)
        self.loop: Loop | None = self._outside
        self._begin_s = time.perf_counter()
        self._begin_mark: Mark | None = None
        self._evaluated: Loop | None = None  # whose segment eval() ended
        self._pending: list[Loop] = []  # passes that yielded for the running step
        self._row_loops: list[Loop] = []  # training passes of the last row
        self._row_optimizer: Callable[[], Any] = lambda: None
        self._optimizer: Callable[[], Any] = lambda: None
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._steps_in_row = 0
        self._steps_in_row_before = 0
        self._ended = False
        self._tick_at_s = 0.0

    # What the loaders and the model tell.

    def enter(self, loop: Loop, now_s: float) -> None:
        """Another pass becomes the active one."""
        if loop.before is None:
            loop.before = self.loop
        self._own(loop, now_s)

    def yielded(self, loop: Loop, entered_s: float, size: int) -> None:
        """The active pass yielded a batch of ``size`` samples, padding included."""
        if loop.step != self.count:
            loop.begin_step(self.count)
        if not loop.batches:
            self._pending.append(loop)
        loop.add(size)
        loop.without_grad = not self.grad_enabled()
        loop.in_eval_mode = self.evaluating
        loop.wait_s += time.perf_counter() - entered_s

    def left(self, loop: Loop) -> None:
        """A pass is over, or was left for good."""
        loop.living = False
        loop.iterator = None
        if self.loop is loop:
            self._own(self._return_to(loop.before), time.perf_counter())
        loop.before = None

    def eval_mode(self) -> None:
        """The model that is trained was put in eval mode."""
        if not self.evaluating:
            self.evaluating = True
            self._evaluated = owner = self.loop
            if owner is not None and owner is not self._outside and not self._is_drawn(owner):
                self.loop = None  # between two steps: what led to the evaluation is no training
            self._own(None, time.perf_counter())

    def train_mode(self) -> None:
        """The model that is trained was put in training mode."""
        if self.evaluating:
            self.evaluating = False
            if self.loop is None:
                self._own(self._return_to(self._evaluated), time.perf_counter())
            self._evaluated = None

    def _return_to(self, loop: Loop | None) -> Loop | None:
        """Whose time it is when what interrupted ``loop`` is over: its own in the middle of a step."""
        if loop is self._outside:
            return loop
        return loop if loop is not None and loop.living and self._is_drawn(loop) else None

    def _is_drawn(self, loop: Loop) -> bool:
        """Whether it yielded for the running step."""
        return loop.step == self.count and loop.batches > 0

    def started(self) -> None:
        """What led here was start-up: before the first step it is no part of a loop without a DataLoader either."""
        if self.count == 0 and self.loop is self._outside:
            self._own(self._outside, time.perf_counter())
            self._outside.begin_step(0)

    def _own(self, owner: Loop | None, now_s: float) -> None:
        """End the running segment and begin one of ``owner``."""
        mark = self.timeline.mark() if self.timeline is not None else None
        self._carry(self.loop, now_s, mark)
        self.loop = owner
        self._begin_s = now_s
        self._begin_mark = mark

    def _carry(self, owner: Loop | None, now_s: float, mark: Mark | None) -> None:
        if owner is None:
            return
        if owner.step != self.count:
            owner.begin_step(self.count)
        owner.carried_s += now_s - self._begin_s
        if self._begin_mark is not None and mark is not None:
            owner.carried_segments.append((self._begin_mark, mark))

    # What the optimizers tell.

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """The hook that torch calls after each optimizer step."""
        now_s = time.perf_counter()
        if self._ended:  # the script caught our SystemExit and goes on
            self.check_limits(self.count, now_s)
        if self._optimizer() is not optimizer:
            self._meet(optimizer)
        mark = None
        if self.timeline is not None:
            mark = self.timeline.mark()
            if mark is None:  # recorded into a CUDA graph: nothing was stepped
                return
        if self.evaluating:
            self._trained_in_eval_mode()
        loops = training(self._pending, self.samples_per_step is None)
        if not loops and self.count and self._is_another(optimizer):
            self._extend_row(now_s, mark)
        else:
            self._add_row(loops, now_s, mark)
        self._begin_s = now_s
        self._begin_mark = mark
        if now_s >= self._tick_at_s:
            if self.count > EARLY_STEPS:
                self._tick_at_s = now_s + TICK_INTERVAL_S
            self.on_tick(now_s)
        # Several optimizers: not before the last of them has stepped.
        if self.count >= self.check_at and self._steps_in_row >= self._steps_in_row_before:
            self._ended = True  # stays so when the check raises
            self.check_at = self.check_limits(self.count, now_s)
            self._ended = False

    def _trained_in_eval_mode(self) -> None:
        """What eval() began was no validation after all."""
        if self.loop is None:
            self.loop = self._evaluated
        self.evaluating = False
        self._evaluated = None

    def _meet(self, optimizer: Any) -> None:
        if optimizer not in self._known:
            self._known.add(optimizer)
            self.on_optimizer(optimizer)
        self._optimizer = weakref.ref(optimizer)

    def _is_another(self, optimizer: Any) -> bool:
        """Whether it is not the optimizer that ended the last row."""
        first = self._row_optimizer()
        return first is not None and first is not optimizer

    def _add_row(self, loops: list[Loop], now_s: float, mark: Mark | None) -> None:
        samples = padding = 0
        wait_s = 0.0
        for loop in loops:
            samples += loop.samples
            padding += loop.padding
            wait_s += loop.wait_s
            if not loop.stepped:
                loop.stepped = True
                self.on_loop(loop)
        told = self.samples_per_step
        self.samples.append(samples if told is None else told)
        self.padding_samples.append(padding if told is None else 0)
        self.data_wait_s.append(wait_s)
        seconds, segments = self._collect(self._owners(loops), now_s, mark)
        self.step_time_s.append(seconds)
        if loops:
            self._row_loops = loops
        if self.timeline is not None and segments:
            self.timeline.add(self.count, segments)
            self.timeline.harvest(self.step_time_s)
        if self.count == 0:
            self.first_step_ended_at_s = time.time()
        self._row_optimizer = self._optimizer
        self._steps_in_row_before = self._steps_in_row
        self._steps_in_row = 1
        self._pending = []
        self.count += 1

    def _owners(self, loops: list[Loop]) -> list[Loop]:
        """Whose time a step is. Where loaders take turns, the last one has the time until this one was entered."""
        if loops and loops == self._row_loops:
            return loops
        before = [loop for loop in self._row_loops if loop not in loops and (loop.living or not loops)]
        return [*before, *(loops or [self._outside])]

    def _extend_row(self, now_s: float, mark: Mark | None) -> None:
        seconds, segments = self._collect(self._row_loops or [self._outside], now_s, mark)
        self.step_time_s[-1] += seconds
        if self.timeline is not None and segments:
            self.timeline.extend(self.count - 1, segments)
        self._steps_in_row += 1
        self._pending = []

    def _collect(self, owners: Sequence[Loop], now_s: float, mark: Mark | None) -> tuple[float, list[Segment]]:
        """Seconds and segments of these owners up to now; they are taken away from them."""
        seconds = 0.0
        segments: list[Segment] = []
        for owner in owners:
            if owner.step == self.count:
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

    def adopt(self, rows: Sequence[Row]) -> None:
        """Take over steps that the program wrote down itself, in the place of those that were seen."""
        self.timeline = None
        for column in (self.samples, self.padding_samples, self.step_time_s, self.data_wait_s):
            del column[:]
        for row in rows:
            self.samples.append(row.samples)
            self.padding_samples.append(0)
            self.step_time_s.append(row.step_time_s)
            self.data_wait_s.append(row.data_wait_s)
        self.count = len(rows)

    def csv(self) -> Iterator[str]:
        """The rows as CSV, step counted from 1."""
        yield CSV_HEADER
        for row in range(self.count):
            yield (
                f"{row + 1},{self.samples[row]},{self.padding_samples[row]},"
                f"{self.step_time_s[row]:.9f},{self.data_wait_s[row]:.9f}\n"
            )
