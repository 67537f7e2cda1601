"""Which statistic of a run's blocks is its figure: their median, or all samples over all time.

The median shrugs off a disturbance of the machine. It also shrugs off slow steps that belong to the training and come
again and again (an evaluation, a checkpoint, a rollout every so many steps), and then nobody can multiply with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.record import MEDIAN_OF_BLOCKS, SAMPLES_PER_TIME, Statistic, Throughput, Timing

Values = NDArray[np.float64]

COVERAGE = 0.95
RESAMPLES = 2000
SEED = 2025
TAILS = ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)
LEAST_GAP = 0.005  # of the rate: nobody's multiplication suffers from less
MOST_ERRORS = 4.0
ERROR_OF_GAP = 1.4826 * math.sqrt(math.pi / 2 - 1)
"""Standard error of mean - median, in median absolute deviations / sqrt(blocks), where the scatter is a normal one."""


@dataclass(frozen=True)
class PerBlock:
    """A figure that each block has as a ratio: samples / time, or time / steps. Arrays of one value for each block."""

    over: Values
    under: Values

    @property
    def values(self) -> Values:
        """The figure of each block."""
        ratio: Values = self.over / self.under
        return ratio

    def of(self, statistic: Statistic, picks: NDArray[np.intp] | None = None) -> Values:
        """The figure of all blocks, or for each row of ``picks`` that of the blocks whose indices it holds."""
        picks = np.arange(len(self.over)) if picks is None else picks
        if statistic == MEDIAN_OF_BLOCKS:
            return np.asarray(np.median(self.values[picks], axis=-1))
        return np.asarray(self.over[picks].sum(axis=-1) / self.under[picks].sum(axis=-1))

    def with_interval(self, statistic: Statistic) -> tuple[float, float, float]:
        """The figure of all blocks and its 95 % interval (low, high)."""
        if statistic == MEDIAN_OF_BLOCKS:
            return median_interval(self.values)
        blocks = len(self.over)
        picks = np.random.default_rng(SEED).integers(0, blocks, (RESAMPLES, blocks))
        figure = float(self.of(statistic))
        low, high = np.quantile(self.of(statistic, picks), TAILS)
        return figure, min(float(low), figure), max(float(high), figure)


def rates(throughput: Throughput, timing: Timing) -> PerBlock:
    """Samples per second, from a record."""
    time_s = np.array(timing.blocks_step_time_s) * np.array(timing.blocks_steps)
    return PerBlock(np.array(throughput.blocks_samples_per_s) * time_s, time_s)


def step_times(timing: Timing) -> PerBlock:
    """Seconds per step, from a record."""
    steps = np.array(timing.blocks_steps, dtype=np.float64)
    return PerBlock(np.array(timing.blocks_step_time_s) * steps, steps)


def statistic_of(runs: Sequence[PerBlock]) -> Statistic:
    """The statistic that the rates (samples / time) of one run, or of several repeats together, ask for.

    Samples / time where it differs from the median of blocks by more than 0.5 %, and by more than four times what the
    scatter of the blocks explains; also without the block that moves it most, so that one disturbance is not enough.
    Repeats are brought to a common median first: how they differ from each other is not asked here.
    """
    if any(not run.over.all() for run in runs):
        return MEDIAN_OF_BLOCKS  # blocks without samples: their run has failed
    samples = np.concatenate([run.over for run in runs])
    time = np.concatenate([run.under * np.median(run.values) for run in runs])  # a median block takes 1 for a sample
    excess = time - samples
    furthest = np.argmax(np.sign(excess.sum()) * excess)
    gap = (excess.sum() - excess[furthest]) / (samples.sum() - samples[furthest]) if len(samples) > 1 else 0.0
    scatter = np.median(np.abs(time / samples - 1))
    explained = MOST_ERRORS * ERROR_OF_GAP * scatter / math.sqrt(len(samples))
    recurs = gap * excess.sum() > 0 and abs(gap) > max(LEAST_GAP, explained)
    return SAMPLES_PER_TIME if recurs else MEDIAN_OF_BLOCKS


def median_interval(values: Values) -> tuple[float, float, float]:
    """Median and its 95 % interval (low, high): two of the values themselves, by their place in the order.

    How many values lie below the true median is binomial. Below six values even the smallest and the largest hold the
    median less often than that; they are the interval then.
    """
    ordered = np.sort(values)
    outside = _places_outside(len(ordered))
    return float(np.median(ordered)), float(ordered[outside]), float(ordered[-1 - outside])


def _places_outside(count: int) -> int:
    """Places at each end of ``count`` ordered values that are not needed to hold the median in 95 % of all cases."""
    tail, outside = 0.5**count, 0
    while outside < (count - 1) // 2:
        tail += math.comb(count, outside + 1) * 0.5**count
        if 2 * tail > 1 - COVERAGE:
            break
        outside += 1
    return outside
