"""Intervals of 95 % of a figure over repeats, and of a ratio of two such figures. Pure.

Repeats differ by more than the noise inside each: the node, its temperature, other jobs, the memory's layout. So the
figures of the repeats themselves are the sample, and the interval is Student's t on their logarithms (a rate's noise is
relative); for a ratio it is Welch's, with the degrees of freedom of Welch and Satterthwaite. Few repeats make it wide,
as they should: the factor of the standard error is 12.7 at two repeats, 4.3 at three, 2.3 at ten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddp_ladder.records.statistic import STANDARD_ERRORS, TAILS, median


@dataclass(frozen=True)
class LogMean:
    """Mean of the logarithms of a figure, the variance of that mean, and the degrees of freedom of the variance."""

    mean: float
    variance: float
    freedom: float

    @classmethod
    def of(cls, figures: Sequence[float], errors: Sequence[float] = ()) -> LogMean:
        """Return that of the repeats' figures, which are positive.

        errors: relative standard error of each, by its blocks. For a single repeat, it is all there is. For several it
        is given if they may share it: slow steps that recur fall on the same steps of each.
        """
        logs = np.log(figures)
        between = float(logs.var(ddof=1)) / len(figures) if len(figures) > 1 else 0.0
        shared = float(np.mean(np.square(errors))) if len(errors) else 0.0
        if len(figures) == 1 or shared > between:
            return cls(float(logs.mean()), shared, math.inf)
        return cls(float(logs.mean()), between, len(figures) - 1)

    def over(self, other: LogMean) -> LogMean:
        """Return that of a ratio: this figure over another one, measured independently."""
        variance = self.variance + other.variance
        parts = self.variance**2 / self.freedom + other.variance**2 / other.freedom
        return LogMean(self.mean - other.mean, variance, variance**2 / parts if parts else math.inf)

    def interval(self, estimate: float) -> tuple[float, float]:
        """Return the interval, widened to hold the estimate: that is the median of the repeats, and not their mean."""
        if not self.variance:
            return estimate, estimate
        half = factor(self.freedom) * math.sqrt(self.variance)
        low, high = math.exp(self.mean - half), math.exp(self.mean + half)
        return min(low, estimate), max(high, estimate)


def factor(freedom: float) -> float:
    """Return half the width of an interval in standard errors: Student's t, for any degrees of freedom."""
    if math.isinf(freedom):
        return STANDARD_ERRORS
    from scipy.special import stdtrit  # takes half a second, which only a gate that needs it should pay

    return float(stdtrit(freedom, TAILS[1]))


def repeats_for(repeats: int, narrower: float, most: int) -> int | None:
    """Return how many repeats, more than there are, make an interval narrower by a factor; None if over ``most``."""
    # A single repeat's interval says nothing of the differences between repeats: as if there were two.
    now = max(repeats, 2)
    error = 1 / factor(now - 1) * math.sqrt(now)
    for count in range(repeats + 1, most + 1):
        if count > 1 and factor(count - 1) / math.sqrt(count) * error * narrower <= 1:
            return count
    return None


def median_of_known(values: Sequence[float | None]) -> float | None:
    """Return the median of the measured values; None if there are none."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
