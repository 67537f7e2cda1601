"""The end of a run's warm-up: after a minimum of steps, and once the step times are steady. Pure.

Steady: three times in a row, the median of five steps moves by less than 3 % from that of the five before, or by no
more than such medians usually do in the run's second half, where only the machine's noise is left. Neighbours are
compared, so a slow drift over the whole run is not warm-up: it stays in the figures and is reported as drift.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.records.statistic import median

WINDOW_STEPS = 5  # odd: the median is one of them
STEADY_MOVES = 3
LARGEST_MOVE = 0.03
NOISE_MOVES = 3  # times the median move: noise alone exceeds it in one of twenty moves


@dataclass(frozen=True)
class Warmup:
    """The warm-up of a run. steps: left out of every figure. stable: step times were steady after it."""

    steps: int
    stable: bool


def find_warmup(step_time_s: NDArray[np.float64], minimum: int, keep: int) -> Warmup:
    """Return the warm-up of a run with these step times, each of the slowest rank.

    keep: steps that must be left for the figures. Beyond ``minimum``, at most half of the run is warm-up.
    """
    steps = len(step_time_s)
    most = max(minimum, min(steps // 2, steps - keep))
    windows = steps // WINDOW_STEPS
    if windows <= STEADY_MOVES:
        return Warmup(minimum, stable=False)
    ordered = np.sort(step_time_s[: windows * WINDOW_STEPS].reshape(windows, WINDOW_STEPS), axis=1)
    medians = ordered[:, WINDOW_STEPS // 2]
    moves = np.abs(medians[1:] / medians[:-1] - 1)
    allowed = max(LARGEST_MOVE, NOISE_MOVES * median(moves[len(moves) // 2 :]))
    calm = np.convolve(moves <= allowed, np.ones(STEADY_MOVES), "valid") == STEADY_MOVES
    first = int(calm.argmax()) * WINDOW_STEPS if calm.any() else steps
    return Warmup(min(max(minimum, first), most), stable=max(minimum, first) <= most)
