"""The signs of progress that this rank shows to the hang watch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from ddp_ladder_instrument.heartbeat import Signs
from ddp_ladder_instrument.step_clock import StepClock

MEDIAN_OF = 101  # steps: a median of all would take long after a million


def signs(clock: StepClock, grown: Callable[[], int], ended: bool) -> Signs:
    """Return the signs; another thread than the one that trains may call this.

    grown: returns how much the program has written of its steps itself; asked where no step is seen.
    """
    steps, timer = clock.table.count, clock.timer
    loop = timer.loop
    reported = 0 if steps else grown()
    if ended:
        phase = "ended"
    elif not steps:
        phase = "unknown" if reported else "starting"
    elif timer.evaluating:
        phase = "evaluating"
    elif steps in (timer.paused_at, clock.batches.paused_at):
        phase = "between passes"
    else:
        phase = "unknown" if timer.without_loader else "training"
    drawn = (id(loop), loop.step, loop.batches) if loop is not None else ()
    return Signs(
        steps, phase, _median_s(clock.table.step_time_s), (steps, phase, clock.backwards.count, reported, drawn)
    )


def _median_s(times_s: Sequence[float]) -> float | None:
    """Return the median of the last steps' times; None before the second step, because the first is no measure."""
    last = times_s[max(1, len(times_s) - MEDIAN_OF) :]
    median = statistics.median(last) if last else math.nan
    return median if math.isfinite(median) else None
