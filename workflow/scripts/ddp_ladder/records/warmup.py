"""The end of a run's warm-up: after a minimum of steps, and the slow ones that follow it. Pure.

A change point against the rest of the run: the series of medians of five steps is divided in two where two levels fit
it best (least squares on logarithms; Hinkley 1970), and the first part is warm-up if it is slower, again and again on
what is left. It is none if a straight line fits better (a drift over the whole run: it stays in the figures, and is
reported as drift), if the slow steps come again later (checkpoints, ends of epochs), if noise explains it, or if the
later part is the slower one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.records.statistic import median

WINDOW_STEPS = 5  # odd: the median is one of them
MOST_WINDOWS = 400  # of a longer run, the windows are longer
LEAST_WINDOWS = 3  # fewer show nothing
LEAST_CHANGE = math.log(1.03)
MOST_NOISE = 30.0
"""A change explains more than this many variances of the noise: noise alone hardly ever does."""
FEW_WINDOWS = 8  # so few show their noise badly: the change must then be twice as large
STILL_FASTER = 1.5  # the first third of what is left, over the last: it is not steady yet

Series = NDArray[np.float64]


@dataclass(frozen=True)
class Warmup:
    """The warm-up of a run. steps: left out of every figure. stable: step times were steady after it.

    slower: how many times as long as the later ones the slow steps took that were left out beyond the minimum.
    """

    steps: int
    stable: bool
    slower: float | None = None


def find_warmup(step_time_s: Series, minimum: int, keep: int) -> Warmup:
    """Return the warm-up of a run with these step times, each of the slowest rank.

    keep: steps that must be left for the figures. Beyond ``minimum``, at most half of the run is warm-up.
    """
    steps = len(step_time_s)
    most = max(minimum, min(steps // 2, steps - keep))
    size = max(WINDOW_STEPS, math.ceil(steps / MOST_WINDOWS) // 2 * 2 + 1)
    if steps - minimum < LEAST_WINDOWS * size:
        return Warmup(minimum, stable=False)
    logs = _windows(step_time_s[minimum:], size)
    noise = median(np.abs(np.diff(logs))) * 1.4826 / math.sqrt(2)  # standard deviation of a window, without its level
    end = minimum
    while slow := _slow_steps(step_time_s[end:], size, noise):
        end += slow
    left = step_time_s[min(end, steps - size) :]
    third = math.ceil(len(left) / 3)
    slower = float(step_time_s[minimum:end].mean()) / median(left) if end > minimum else None
    # Of both, as steps may alternate, or a few of them take very long.
    faster = min(median(left[:third]) / median(left[-third:]), float(left[:third].mean() / left[-third:].mean()))
    if end > most or faster > STILL_FASTER:
        return Warmup(most, stable=False, slower=slower)
    return Warmup(end, stable=True, slower=slower)


def _windows(step_time_s: Series, size: int) -> Series:
    """Return the logarithm of the median of each window of so many steps."""
    windows = len(step_time_s) // size
    ordered = np.sort(step_time_s[: windows * size].reshape(windows, size), axis=1)
    logs: Series = np.log(np.maximum(ordered[:, size // 2], np.finfo(np.float64).tiny))
    return logs


def _slow_steps(step_time_s: Series, size: int, noise: float) -> int:
    """Return how many first steps are slower than all others; 0 if there is no such change.

    noise: standard deviation of a window's logarithm.
    """
    logs = _windows(step_time_s, size)
    windows = len(logs)
    if windows < LEAST_WINDOWS:
        return 0
    first = np.arange(1, windows)  # windows of the first part
    before = np.cumsum(logs)[:-1] / first
    after = (logs.sum() - first * before) / (windows - first)
    explained = first * (windows - first) / windows * np.maximum(before - after, 0.0) ** 2
    best = int(explained.argmax())
    place = np.arange(windows) - (windows - 1) / 2
    by_a_line = float(place @ logs) ** 2 / float(place @ place)
    by_noise = MOST_NOISE * (1 + FEW_WINDOWS / windows) * noise**2
    middle = (before[best] + after[best]) / 2
    slow, again = int((logs[: best + 1] > middle).sum()), int((logs[best + 1 :] > middle).sum())
    if (
        before[best] - after[best] < LEAST_CHANGE
        or explained[best] < max(by_noise, by_a_line + by_noise / 2)
        or 2 * slow <= best + 1
        or again >= slow
    ):
        return 0
    end = int(first[best]) * size
    while end < len(step_time_s) and step_time_s[end] > math.exp(middle):  # of the window in which the change is
        end += 1
    return end
