"""The step clock: one row per training step with its samples, its time and its wait for data.

A step ends with an optimizer's step. If another optimizer (a GAN's second one) steps before the next
batch is drawn, that belongs to the same step.

Time is recorded in segments. Each belongs to the pass over a DataLoader that was entered last. A step's
time is that of its training passes (module ``loops``): validation is another pass. The time between two
passes, or between the model's ``eval()`` and ``train()``, belongs to no step. A step between the end of
a pass and the next pass (its last batch was drawn ahead, or ends an accumulation) gets the time since
that end. A training loop without a DataLoader gets the time that belongs to no pass.

The samples of a step are those of the batches that its training passes yielded since the last step,
except batches drawn ahead and batches whose gradients are known to be lost: a step that GradScaler
skipped, or the rest of an epoch whose gradients were dropped.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ddp_ladder_instrument.gradients import Gradient
from ddp_ladder_instrument.loops import Loop, is_remainder, training

if TYPE_CHECKING:
    from ddp_ladder_instrument.cuda import CudaTimeline, Mark, Segment
    from ddp_ladder_instrument.metrics import Row

CSV_HEADER = "step,samples,padding_samples,step_time_s,data_wait_s\n"
NEVER = 2**62
TICK_INTERVAL_S = 0.25
EARLY_STEPS = 12
"""The tick runs at each of the first steps: some of what it looks for happens only there."""


class Steps:
    """The rows of steps, and the state between two steps. Seconds are from time.perf_counter().

    samples_per_step: replaces counted samples, for loops without a DataLoader.
    on_optimizer: called with each optimizer before its first step is counted.
    on_batch: called with the pass and each batch that it yields during the first EARLY_STEPS.
    on_loop: called at the first step of each training pass.
    on_tick: called with the current time at a step's end, every TICK_INTERVAL_S.
    backwards, calls: the number of backward passes, and of steps of optimizers.
    trainers: the threads that train: the main one, and those that called backward().
    background: passes that other threads draw from.
    held: by thread, the batches (pass and size) that it drew or got and has not passed on.
    wait_unknown: another thread draws, and the instrument did not see how the training gets its batches;
        on_wait_unknown is called when this is detected.
    loop: the pass that was entered last and is not over; the running segment belongs to it.
    check_limits: called with step and current time at step ``check_at``; returns the next such step.
    """

    __slots__ = (
        "_after",
        "_backwards_at_row",
        "_begin_mark",
        "_begin_s",
        "_between",
        "_ended",
        "_evaluated",
        "_gradient",
        "_known",
        "_optimizer",
        "_outside",
        "_pending",
        "_row_loops",
        "_row_optimizer",
        "_skipped",
        "_steps_in_row",
        "_steps_in_row_before",
        "_tick_at_s",
        "background",
        "backwards",
        "calls",
        "check_at",
        "check_limits",
        "count",
        "data_wait_s",
        "evaluating",
        "first_step_ended_at_s",
        "grad_enabled",
        "held",
        "loop",
        "on_batch",
        "on_loop",
        "on_optimizer",
        "on_tick",
        "on_wait_unknown",
        "padding_samples",
        "samples",
        "samples_per_step",
        "step_time_s",
        "timeline",
        "trainers",
        "wait_unknown",
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
        self.on_wait_unknown: Callable[[], None] = lambda: None
        self.on_tick: Callable[[float], None] = lambda now_s: None
        self.check_limits: Callable[[int, float], int] = lambda step, now_s: NEVER
        self.backwards = 0
        self.calls = 0
        self.trainers = {threading.main_thread().ident or 0}
        self.background: list[Loop] = []
        self.held: dict[int, list[tuple[Loop, int]]] = {}
        self.wait_unknown = False
        self._after = Loop(lambda: None, NEVER)  # owns the time after a pass
        self._outside = Loop(lambda: None, NEVER)  # owns the time of a loop without a DataLoader
        self._outside.begin_step(0)
        self.loop: Loop | None = self._outside
        self._begin_s = time.perf_counter()
        self._begin_mark: Mark | None = None
        self._evaluated: Loop | None = None  # the pass whose segment eval() ended
        self._pending: list[Loop] = []  # passes that yielded for the running step
        self._row_loops: list[Loop] = []  # training passes of the last row
        self._row_optimizer: Callable[[], Any] = lambda: None
        self._optimizer: Callable[[], Any] = lambda: None
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._backwards_at_row = 0
        self._between = False  # a pass ended since the last step, and no backward pass followed in another
        self._gradient: Gradient | None = None  # its state at that end
        self._skipped = False
        self._steps_in_row = 0
        self._steps_in_row_before = 0
        self._ended = False
        self._tick_at_s = 0.0

    # Called by the hooks on loaders and the model.

    def enter(self, loop: Loop, now_s: float) -> None:
        """Make this pass the active one."""
        if self.loop is self._after:  # that time was between two passes and belongs to no step
            self.loop = None
        if loop.before is None:
            loop.before = self.loop
        self._own(loop, now_s)

    def yielded(self, loop: Loop, entered_s: float, size: int) -> None:
        """Count a batch of ``size`` samples, padding included, that the active pass yielded."""
        if self._skipped:
            self._discard()
        if loop.step != self.count:
            loop.begin_step(self.count)
        if not loop.batches:
            self._pending.append(loop)
            if not loop.stepped:
                loop.backwards_at_begin = loop.backwards_at_begin or self.backwards
        loop.add(size)
        loop.without_grad = not self.grad_enabled()
        loop.in_eval_mode = self.evaluating
        loop.wait_s += time.perf_counter() - entered_s

    def left(self, loop: Loop) -> None:
        """End a pass that is exhausted or abandoned."""
        self._end_pass(loop)
        loop.iterator = None
        if self.loop is loop:
            self._own(self._return_to(loop.before) or self._after, time.perf_counter())
        loop.before = None

    def _end_pass(self, loop: Loop) -> None:
        if not loop.living:
            return
        loop.living = False
        loop.backwards_at_end = self.backwards
        if self._is_drawn(loop):
            loop.spent = self.backwards > self._backwards_at_row
            self._between = True
            self._look_at_gradient()

    def eval_mode(self) -> None:
        """Stop the time of the training: its model was put in eval mode."""
        if not self.evaluating:
            self.evaluating = True
            self._evaluated = owner = self.loop
            if owner is not None and owner is not self._outside and not self._is_drawn(owner):
                self.loop = None  # between two steps: the time since the last step is no training
            self._own(None, time.perf_counter())

    def train_mode(self) -> None:
        """Resume the time of the training: its model was put in training mode."""
        if self.evaluating:
            self.evaluating = False
            if self.loop is None:
                self._own(self._return_to(self._evaluated), time.perf_counter())
            self._evaluated = None

    def _return_to(self, loop: Loop | None) -> Loop | None:
        """Return the owner of the time after an interruption of ``loop``: that pass, if in the middle of a step."""
        if loop is self._after or (loop is self._outside and not self._row_loops):
            return loop
        return loop if loop is not None and loop.living and self._is_drawn(loop) else None

    def _is_drawn(self, loop: Loop) -> bool:
        """Return True if it yielded a batch for the running step."""
        return loop.step == self.count and loop.batches > 0

    # Batches that another thread draws.

    def received(self, batches: Sequence[tuple[Loop, int]], entered_s: float) -> None:
        """Count batches that a training thread got from the one that drew them; it waited since ``entered_s``."""
        for loop, size in batches:
            if not loop.received:
                self._leave_others(loop)
            loop.received += 1
            if self.loop is not loop:
                self.enter(loop, entered_s)
            self.yielded(loop, entered_s, size)
            entered_s = time.perf_counter()
            if loop.exhausted and loop.received == loop.given:
                self._end_pass(loop)

    def _leave_others(self, loop: Loop) -> None:
        """End earlier passes over the same loader: an abandoned thread may keep its pass for ever."""
        loader = loop.loader()
        for other in self._row_loops:
            if other is not loop and other.given and other.loader() is loader is not None:
                self._end_pass(other)

    def waited(self, loop: Loop, entered_s: float) -> None:
        """Count a wait of the training for a batch of this pass that brought none."""
        if not loop.living:
            self.left(loop)
            return
        if loop.step != self.count:
            loop.begin_step(self.count)
        loop.wait_s += time.perf_counter() - entered_s

    def exhausted(self, loop: Loop) -> None:
        """Note that the other thread has finished or abandoned the pass; the training may lag behind."""
        loop.exhausted = True
        if loop.received == loop.given:
            self._end_pass(loop)

    def _look_for_batches(self, optimizer: Any) -> None:
        """Find the batches of a step for which none came: other threads may hand them over unseen."""
        thread = threading.get_ident()
        if thread in self.held:
            self.trainers.add(thread)
            self.received(self.held.pop(thread), time.perf_counter())
            return
        if self.count and (self._is_another(optimizer) or self._drawn_ahead()):
            return
        for loop in self.background:
            if loop.given and not loop.received and not self.wait_unknown:
                self.wait_unknown = True
                self.on_wait_unknown()
        if self.wait_unknown:
            for held in list(self.held.values()):
                self.received([held.pop(0) for _ in range(len(held))], time.perf_counter())

    # Called by the hooks on backward passes and GradScaler.

    def before_backward(self) -> Callable[[], None] | None:
        """Count a backward pass that begins; return a function to call after it, if any."""
        if self.background:
            self._trains_here()
        self.backwards += 1
        return self._backward_between() if self._between else None

    def _trains_here(self) -> None:
        thread = threading.get_ident()
        if thread not in self.trainers:
            self.trainers.add(thread)
            self.received(self.held.pop(thread, []), time.perf_counter())

    def _backward_between(self) -> Callable[[], None] | None:
        living = [loop for loop in self._pending if loop.living and not loop.without_grad]
        over = [loop for loop in self._pending if not loop.living]
        if not living:  # the backward pass belongs to the pass that is over
            for loop in over:
                loop.spent = True
            return self._after_backward_between
        lost = self._gradient is not None and not self._gradient.is_kept()
        for loop in over:
            loop.dropped = lost and is_remainder(loop, living)
        self._between = False
        return None

    def _after_backward_between(self) -> None:
        """Give the time up to now to the pass that is over: its backward pass has just ended."""
        self._look_at_gradient()
        over = [loop for loop in self._pending if not loop.living]
        if self.loop is self._after and over:
            self._own(self._after, time.perf_counter(), over[-1])

    def _look_at_gradient(self) -> None:
        self._gradient = Gradient.of(self._known) if self.backwards > self._backwards_at_row else None

    def _drop_untrained(self) -> None:
        """Drop the rest of a pass for which no backward pass was made, neither before nor after its end."""
        living = [loop for loop in self._pending if loop.living]
        made = self.backwards - self._backwards_at_row
        if living and 0 < made <= max(loop.batches for loop in living):
            for loop in self._pending:
                if not loop.living and not loop.spent:
                    loop.dropped = is_remainder(loop, living)

    def skipped(self) -> None:
        """Note that GradScaler skipped a step. Another optimizer may still step on the same batches."""
        self._skipped = True

    def _discard(self) -> None:
        """Discard the batches since the last step: no step trains on them."""
        self._skipped = False
        loops = training(self._pending, self.samples_per_step is None)
        for loop in self._pending:
            self._take(loop, None) if loop in loops else loop.take()
            loop.batches = 0
        self._pending = []
        self._backwards_at_row = self.backwards

    def started(self) -> None:
        """Discard the time so far, if no step was made: it was start-up, also for a loop without a DataLoader."""
        if self.count == 0 and self.loop is self._outside:
            self._own(self._outside, time.perf_counter())
            self._outside.begin_step(0)

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
        if owner.step != self.count:
            owner.begin_step(self.count)
        owner.carried_s += now_s - self._begin_s
        if self._begin_mark is not None and mark is not None:
            owner.carried_segments.append((self._begin_mark, mark))

    # Called by the hook on optimizers.

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Add a row, or extend the last one; torch calls this after each optimizer step."""
        now_s = time.perf_counter()
        self.calls += 1
        if self._ended:  # the script caught our SystemExit and continues
            self.check_limits(self.count, now_s)
        if self._optimizer() is not optimizer:
            self._switch_to(optimizer)
        mark = None
        if self.timeline is not None:
            mark = self.timeline.mark()
            if mark is None:  # captured into a CUDA graph: no step was made
                return
        if self.evaluating:
            self._trained_in_eval_mode()
        if self.background and not self._pending:
            self._look_for_batches(optimizer)
        if len(self._pending) > 1:
            self._drop_untrained()
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
        # With several optimizers, check only after the last of them has stepped.
        if self.count >= self.check_at and self._steps_in_row >= self._steps_in_row_before:
            self._ended = True  # remains True if the check raises
            self.check_at = self.check_limits(self.count, now_s)
            self._ended = False

    def _trained_in_eval_mode(self) -> None:
        """Give the time since eval() back to the training: a step in eval mode shows that it was no validation."""
        if self.loop is None:
            self.loop = self._evaluated
        self.evaluating = False
        self._evaluated = None

    def _switch_to(self, optimizer: Any) -> None:
        if optimizer not in self._known:
            self._known.add(optimizer)
            self.on_optimizer(optimizer)
        self._optimizer = weakref.ref(optimizer)

    def _is_another(self, optimizer: Any) -> bool:
        """Return True if another optimizer ended the last row."""
        first = self._row_optimizer()
        return first is not None and first is not optimizer

    def _drawn_ahead(self) -> list[Loop]:
        """Return the passes that are over and have batches that no step has used."""
        return [loop for loop in self._row_loops if loop.sizes and not loop.living]

    def _take(self, loop: Loop, row: int | None) -> list[tuple[int, int]]:
        """Take and return the batches of ``loop`` that this step trains on; row: None if the step was skipped."""
        made = self.backwards - self._backwards_at_row
        fresh = loop.batches if loop.step == self.count else 0
        left = loop.ahead
        if not loop.living and left and (self.backwards > loop.backwards_at_end or not self.backwards):
            left = max(0, len(loop.sizes) - loop.each_step)
        elif loop.first is not None and fresh:
            left = self._find_ahead(loop, made, fresh)
        batches = loop.take(left)
        if not loop.stepped and fresh > 1:
            made = min(made, self.backwards - loop.backwards_at_begin)
            loop.first = (NEVER if row is None else row, made, batches)
        return batches

    def _find_ahead(self, loop: Loop, made: int, fresh: int) -> int:
        """Return how many batches are drawn ahead, from the pass's first two steps; remove them from the first row."""
        assert loop.first is not None
        row, made_first, first = loop.first
        loop.first = None
        used = fresh * made_first / made if made else float(fresh)
        ahead = len(first) - int(used)
        if ahead <= 0 or used != int(used) or (made_first and not made):
            return 0
        loop.ahead, loop.each_step = ahead, fresh
        for samples, padding in reversed(first[int(used) :]):
            loop.give_back(samples + padding)
            if row < self.count and self.samples_per_step is None:
                self.samples[row] -= samples
                self.padding_samples[row] -= padding
        return ahead

    def _add_row(self, loops: list[Loop], now_s: float, mark: Mark | None) -> None:
        samples = padding = 0
        wait_s = 0.0
        loops = loops or self._drawn_ahead()
        for loop in loops:
            for real, filled in self._take(loop, self.count):
                samples += real
                padding += filled
            if loop.step == self.count:
                wait_s += loop.wait_s
            if not loop.stepped:
                loop.stepped = True
                self.on_loop(loop)
        for loop in self._pending:
            if loop not in loops:
                loop.take()
                wait_s += loop.wait_s if loop.dropped else 0.0
        fixed = self.samples_per_step
        self.samples.append(samples if fixed is None else fixed)
        self.padding_samples.append(padding if fixed is None else 0)
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
        self._end_row()
        self.count += 1

    def _owners(self, loops: list[Loop]) -> list[Loop]:
        """Return the passes whose time a step gets. If loaders alternate, the previous one has the time until this one.

        Dropped batches count too: they took time.
        """
        if loops and loops == self._row_loops and self.loop is not self._after:
            return loops
        before = [loop for loop in self._row_loops if loop not in loops and (loop.living or not loops)]
        dropped = [loop for loop in self._pending if loop.dropped and loop not in before]
        return [*before, *dropped, *(loops or [self._outside]), self._after]

    def _extend_row(self, now_s: float, mark: Mark | None) -> None:
        seconds, segments = self._collect([*(self._row_loops or [self._outside]), self._after], now_s, mark)
        self.step_time_s[-1] += seconds
        if self.timeline is not None and segments:
            self.timeline.extend(self.count - 1, segments)
        self._steps_in_row += 1
        for loop in self._pending:
            loop.take()
        self._end_row()

    def _end_row(self) -> None:
        self._pending = []
        self._backwards_at_row = self.backwards
        self._between = self._skipped = False
        self._gradient = None

    def _collect(self, owners: Sequence[Loop], now_s: float, mark: Mark | None) -> tuple[float, list[Segment]]:
        """Take and return the seconds and segments of these owners up to now."""
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
        """Replace the rows with steps that the program reported itself."""
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
        """Yield the rows as CSV lines; steps count from 1, an unknown wait is nan."""
        yield CSV_HEADER
        for row in range(self.count):
            wait_s = math.nan if self.wait_unknown else self.data_wait_s[row]
            yield (
                f"{row + 1},{self.samples[row]},{self.padding_samples[row]},{self.step_time_s[row]:.9f},{wait_s:.9f}\n"
            )
