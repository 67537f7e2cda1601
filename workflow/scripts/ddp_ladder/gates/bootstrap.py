"""Intervals by a hierarchical bootstrap (Hoefler and Belli, SC'15). Pure.

Repeats are drawn first, then blocks inside each drawn repeat. The statistic of the blocks is computed, then the median
over repeats. For a ratio, both sides are drawn. Intervals are 95 % percentile intervals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ddp_ladder.records.record import Statistic
from ddp_ladder.records.statistic import RESAMPLES, SEED, TAILS, PerBlock

Draws = npt.NDArray[np.float64]


def draws(repeats: Sequence[PerBlock], statistic: Statistic, seed: int) -> Draws:
    """Return the bootstrap distribution, shape (RESAMPLES,), of the median over repeats of the blocks' statistic."""
    generator = np.random.default_rng([SEED, seed])
    chosen = generator.integers(0, len(repeats), (RESAMPLES, len(repeats)))
    figures = np.empty(chosen.shape)
    for index, run in enumerate(repeats):
        here = chosen == index
        picks = generator.integers(0, len(run.over), (int(here.sum()), len(run.over)))
        figures[here] = run.of(statistic, picks)
    drawn: Draws = np.median(figures, axis=1)
    return drawn


def interval(draws: Draws, estimate: float) -> tuple[float, float]:
    """Return the 95 % interval, widened to hold the estimate: that is the record's own median, not a draw."""
    low, high = np.quantile(draws, TAILS)
    return min(float(low), estimate), max(float(high), estimate)


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return float(np.median(values))


def median_of_known(values: Sequence[float | None]) -> float | None:
    """Return the median of the measured values; None if there are none."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
