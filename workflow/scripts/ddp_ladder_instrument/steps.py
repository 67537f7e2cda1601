"""The step clock: one row per optimizer step with its samples, its time and its wait for data.

A step begins where the one before it ended, as long as the same pass over the same DataLoader goes
on. Where another loader was active in between (validation), or a new pass begins (an epoch), it
begins when the training loader is next entered. Whatever happens outside of steps is never counted.

The loader that yielded last before an optimizer step is the training loader; all its batches since
the step before are consumed by this one (gradient accumulation); batches of other loaders are not
training.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddp_ladder_instrument.cuda import CudaTimeline, Mark, Segment

CSV_HEADER = "step,samples,padding_samples,step_time_s,data_wait_s\n"
NEVER = 2**62
TICK_INTERVAL_S = 0.25
EARLY_STEPS = 12
"""The tick runs at each of the first steps: what it looks for there happens only there."""


class Loop:
    """One pass over a DataLoader: what it yielded since the last optimizer step.

    ``loader`` returns the DataLoader while it lives. ``real_samples``: how many samples of this
    pass are not padding by the sampler; those come first.
    """

    __slots__ = (
        "batches",
        "carried_s",
        "carried_segments",
        "loader",
        "padding",
        "position",
        "real_samples",
        "samples",
        "step",
        "wait_s",
    )

    def __init__(self, loader: Callable[[], Any], real_samples: int) -> None:
        self.loader = loader
        self.real_samples = real_samples
        self.position = 0
        self.begin_step(-1)

    def begin_step(self, step: int) -> None:
        """Forget what was yielded before; ``step`` counts from 0."""
        self.step = step
        self.batches = 0
        self.samples = 0
        self.padding = 0
        self.wait_s = 0.0
        self.carried_s = 0.0
        self.carried_segments: list[Segment] = []


class Steps:
    """Rows of steps, and the state between two of them. Seconds are of time.perf_counter().

    on_optimizer: called with the optimizer at the first step and whenever another one steps.
    on_loop: called at the first step of each training pass.
    on_tick: called with the present time at a step's end, every TICK_INTERVAL_S.
    check_limits: called with step and present time at step ``check_at``, gives the next such step.
    """

    def __init__(self) -> None:
        self.samples = array("q")
        self.padding_samples = array("q")
        self.step_time_s = array("d")
        self.data_wait_s = array("d")
        self.count = 0
        self.loop: Loop | None = None
        self.training_loop: Loop | None = None
        self.begin_s = time.perf_counter()
        self.begin_mark: Mark | None = None
        self.timeline: CudaTimeline | None = None
        self.check_at = NEVER
        self._ended = False
        self.first_step_ended_at_s: float | None = None
        self._tick_at_s = 0.0
        self._optimizer: Callable[[], Any] = lambda: None
        self.on_optimizer: Callable[[Any], Callable[[], Any]] = lambda optimizer: lambda: optimizer
        self.on_loop: Callable[[Loop], None] = lambda loop: None
        self.on_tick: Callable[[float], None] = lambda now_s: None
        self.check_limits: Callable[[int, float], int] = lambda step, now_s: NEVER

    def enter(self, loop: Loop, now_s: float) -> None:
        """Another pass becomes the active one."""
        mark = self.timeline.mark() if self.timeline is not None else None
        left = self.loop
        if left is not None and left.step == self.count and left.batches:
            # Left in the middle of an accumulation: what it did so far belongs to its step.
            left.carried_s += now_s - self.begin_s
            if self.begin_mark is not None and mark is not None:
                left.carried_segments.append((self.begin_mark, mark))
        if loop.step != self.count or not loop.batches:
            loop.begin_step(self.count)
        self.loop = loop
        self.begin_s = now_s
        self.begin_mark = mark

    def yielded(self, loop: Loop, entered_s: float, size: int) -> None:
        """The active pass yielded a batch of ``size`` samples, padding included."""
        if loop.step != self.count:
            loop.begin_step(self.count)
        loop.batches += 1
        loop.position += size
        excess = loop.position - loop.real_samples
        if excess > 0:
            excess = min(excess, size)
            loop.padding += excess
            size -= excess
        loop.samples += size
        loop.wait_s += time.perf_counter() - entered_s

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """The hook that torch calls after each optimizer step."""
        now_s = time.perf_counter()
        count = self.count
        if self._ended:  # the script caught our SystemExit and goes on
            self.check_limits(count, now_s)
        if self._optimizer() is not optimizer:
            self._optimizer = self.on_optimizer(optimizer)
        mark = None
        if self.timeline is not None:
            mark = self.timeline.mark()
            if mark is None:  # recorded into a CUDA graph: nothing was stepped
                return
        self._add_row(self.loop, now_s, mark)
        self.begin_s = now_s
        self.begin_mark = mark
        self.count = count = count + 1
        if now_s >= self._tick_at_s:
            if count > EARLY_STEPS:
                self._tick_at_s = now_s + TICK_INTERVAL_S
            self.on_tick(now_s)
        if count >= self.check_at:
            self._ended = True  # stays so when the check raises
            self.check_at = self.check_limits(count, now_s)
            self._ended = False

    def _add_row(self, loop: Loop | None, now_s: float, mark: Mark | None) -> None:
        carried_s = 0.0
        carried_segments: list[Segment] = []
        if loop is not None and loop.step == self.count and loop.batches:
            self.samples.append(loop.samples)
            self.padding_samples.append(loop.padding)
            self.data_wait_s.append(loop.wait_s)
            carried_s = loop.carried_s
            carried_segments = loop.carried_segments
            if loop is not self.training_loop:
                self.training_loop = loop
                self.on_loop(loop)
        else:
            self.samples.append(0)
            self.padding_samples.append(0)
            self.data_wait_s.append(0.0)
        self.step_time_s.append(carried_s + now_s - self.begin_s)
        if mark is not None and self.begin_mark is not None and self.timeline is not None:
            self.timeline.add(self.count, self.begin_mark, mark, carried_segments)
            self.timeline.harvest(self.step_time_s)
        if self.count == 0:
            self.first_step_ended_at_s = time.time()

    def csv(self) -> Iterator[str]:
        """The rows as CSV, step counted from 1."""
        yield CSV_HEADER
        for row in range(self.count):
            yield (
                f"{row + 1},{self.samples[row]},{self.padding_samples[row]},"
                f"{self.step_time_s[row]:.9f},{self.data_wait_s[row]:.9f}\n"
            )
