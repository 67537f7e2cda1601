"""The statistic of a run's blocks that is its figure, and the end of its warm-up. Pure.

The figure is the median of the blocks, or all samples over all time. The median ignores a disturbance of the machine.
It also ignores slow steps that belong to the training and recur (an evaluation, a checkpoint, a rollout every so many
steps); then it cannot predict the time of a longer run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.records.record import MEDIAN_OF_BLOCKS, SAMPLES_PER_TIME, Statistic, Throughput, Timing

Values = NDArray[np.float64]

COVERAGE = 0.95
RESAMPLES = 2000
SEED = 2025
STANDARD_ERRORS = 1.959964  # half a 95 % interval of a normal distribution
TAILS = ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)
LEAST_GAP = 0.005  # of the rate: a smaller gap does not matter
MOST_ERRORS = 4.0
GRID = 401  # twice the most blocks
RANGE_FREEDOM = 10.0  # degrees of freedom of a variance from the range of a Brownian bridge
ERROR_OF_GAP = 1.4826 * math.sqrt(math.pi / 2 - 1)
"""Standard error of mean - median, in median absolute deviations / sqrt(blocks), for normally distributed blocks."""


@dataclass(frozen=True)
class PerBlock:
    """A ratio of each block: samples / time, or time / steps. Arrays with one value per block."""

    over: Values
    under: Values

    @property
    def values(self) -> Values:
        ratio: Values = self.over / self.under
        return ratio

    def of(self, statistic: Statistic, picks: NDArray[np.intp] | None = None) -> Values:
        """Return the statistic of all blocks, or for each row of ``picks`` that of the blocks with these indices."""
        picks = np.arange(len(self.over)) if picks is None else picks
        if statistic == MEDIAN_OF_BLOCKS:
            return np.asarray(np.median(self.values[picks], axis=-1))
        return np.asarray(self.over[picks].sum(axis=-1) / self.under[picks].sum(axis=-1))

    def with_interval(self, statistic: Statistic) -> tuple[float, float, float]:
        """Return the statistic of all blocks and its 95 % interval (low, high)."""
        if statistic == MEDIAN_OF_BLOCKS:
            return median_interval(self.values)
        blocks = len(self.over)
        picks = np.random.default_rng(SEED).integers(0, blocks, (RESAMPLES, blocks))
        figure = float(self.of(statistic))
        low, high = np.quantile(self.of(statistic, picks), TAILS)
        return figure, min(float(low), figure), max(float(high), figure)


def median(values: Sequence[float] | Values) -> float:
    """Return the median."""
    return float(np.median(values))


def rates(throughput: Throughput, timing: Timing) -> PerBlock:
    """Return the samples per second of each block, from a record."""
    time_s = np.array(timing.blocks_step_time_s) * np.array(timing.blocks_steps)
    return PerBlock(np.array(throughput.blocks_samples_per_s) * time_s, time_s)


def step_times(timing: Timing) -> PerBlock:
    """Return the seconds per step of each block, from a record."""
    steps = np.array(timing.blocks_steps, dtype=np.float64)
    return PerBlock(np.array(timing.blocks_step_time_s) * steps, steps)


def statistic_of(runs: Sequence[PerBlock]) -> Statistic:
    """Return the statistic for the rates (samples / time) of one run, or of several repeats together.

    Samples / time if it differs from the median of blocks by more than 0.5 %, and by more than four times what the
    scatter of the blocks explains; also without the block that moves it most, so that one disturbance is not enough.
    Repeats are scaled to a common median first: differences between them do not matter here.
    """
    if any(not run.over.all() for run in runs):
        return MEDIAN_OF_BLOCKS  # blocks without samples: their run has failed
    samples = np.concatenate([run.over for run in runs])
    time = np.concatenate([run.under * median(run.values) for run in runs])  # a sample of the median block takes 1
    excess = time - samples
    furthest = np.argmax(np.sign(excess.sum()) * excess)
    gap = (excess.sum() - excess[furthest]) / (samples.sum() - samples[furthest]) if len(samples) > 1 else 0.0
    scatter = median(np.abs(time / samples - 1))
    explained = MOST_ERRORS * ERROR_OF_GAP * scatter / math.sqrt(len(samples))
    recurs = gap * excess.sum() > 0 and abs(gap) > max(LEAST_GAP, explained)
    return SAMPLES_PER_TIME if recurs else MEDIAN_OF_BLOCKS


def recurring_error(runs: Sequence[PerBlock]) -> float:
    """Return the relative standard error of samples / time that the scatter of repeats does not show.

    It is caused by slow steps that fall on the same step numbers in every repeat.

    That of a run is the range of its excess of time over an even pace, which accumulates from block to block, over the
    mean range for steps that come at random (a Brownian bridge; Feller 1951). Steps at equal distances leave a
    sawtooth, no higher than one of them. What falls on other steps in each repeat averages out in the mean of their
    excesses, and their figures show it: only what remains is returned.
    """
    grid = np.linspace(0, 1, GRID)
    walks = np.array([np.interp(grid, _shares(run.over), _shares(run.under)) - grid for run in runs])
    blocks = min(len(run.over) for run in runs)
    range_of_error = math.sqrt(math.pi / 2) - 1 / math.sqrt(blocks)  # in standard errors
    alone, together = float((np.ptp(walks, axis=1) ** 2).mean()), float(np.ptp(walks.mean(axis=0)) ** 2)
    shared = (len(runs) * together - alone) / (len(runs) - 1) if len(runs) > 1 else alone
    return math.sqrt(max(0.0, shared)) / range_of_error


def _shares(parts: Values) -> Values:
    """Return the share of the sum up to each block, from 0 to 1."""
    sums = np.concatenate(([0.0], np.cumsum(parts)))
    shares: Values = sums / sums[-1]
    return shares


def median_interval(values: Values) -> tuple[float, float, float]:
    """Return the median and its 95 % interval (low, high): two of the values, by their rank.

    The number of values below the true median is binomial. With fewer than six values, even the smallest and the
    largest enclose the median less often than that; they are the interval then.
    """
    ordered = np.sort(values)
    outside = _places_outside(len(ordered))
    return median(ordered), float(ordered[outside]), float(ordered[-1 - outside])


def _places_outside(count: int) -> int:
    """Return how many of ``count`` ordered values to drop at each end and still enclose the median in 95 % of cases."""
    tail, outside = 0.5**count, 0  # scipy.stats has it as binom.ppf, and takes a second to import
    while outside < (count - 1) // 2:
        tail += math.comb(count, outside + 1) * 0.5**count
        if 2 * tail > 1 - COVERAGE:
            break
        outside += 1
    return outside


WINDOW_STEPS = 5  # odd: the median is one of them
MOST_WINDOWS = 400  # of a longer run, the windows are longer
LEAST_WINDOWS = 3  # fewer show nothing
LEAST_CHANGE = math.log(1.03)
MOST_NOISE = 30.0
"""A change explains more than this many variances of the noise: noise alone hardly ever does."""
FEW_WINDOWS = 8  # so few show their noise badly: the change must then be twice as large
STILL_FASTER = 1.5  # the first third of what is left, over the last: it is not steady yet


@dataclass(frozen=True)
class Warmup:
    """The warm-up of a run. steps: left out of every figure. stable: step times were steady after it."""

    steps: int
    stable: bool


def find_warmup(step_time_s: Values, minimum: int, keep: int) -> Warmup:
    """Return the warm-up of a run with these step times, each of the slowest rank.

    It ends at a change point against the rest of the run: the series of medians of five steps is divided in two where
    two levels fit it best (least squares on logarithms; Hinkley 1970), and the first part is warm-up if it is slower,
    again and again on what is left. It is none if a straight line fits better (a drift over the whole run: it stays in
    the figures, and is reported as drift), if the slow steps come again later (checkpoints, ends of epochs), if noise
    explains it, or if the later part is the slower one.

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
    # Of both, as steps may alternate, or a few of them take very long.
    faster = min(median(left[:third]) / median(left[-third:]), float(left[:third].mean() / left[-third:].mean()))
    if end > most or faster > STILL_FASTER:
        return Warmup(most, stable=False)
    return Warmup(end, stable=True)


def _windows(step_time_s: Values, size: int) -> Values:
    """Return the logarithm of the median of each window of so many steps."""
    windows = len(step_time_s) // size
    ordered = np.sort(step_time_s[: windows * size].reshape(windows, size), axis=1)
    logs: Values = np.log(np.maximum(ordered[:, size // 2], np.finfo(np.float64).tiny))
    return logs


def _slow_steps(step_time_s: Values, size: int, noise: float) -> int:
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
