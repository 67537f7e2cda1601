"""Ratios of two throughputs, with 95 % intervals: of runs in pairs, and of runs made apart. Pure.

Runs of one repeat follow each other on the same nodes. What slows down both, such as a hot node or other jobs, cancels
in the ratio of such a pair: the interval is Student's t on the logarithms of the pairs' ratios. Runs of different jobs
have no such pairs: their interval is Welch's, on the logarithms of the throughputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddp_ladder.gates.interval import KNOWN, LogMean, Variance, ends
from ddp_ladder.records.statistic import COVERAGE

LEAST_REPEATS = 2  # a single pair shows no scatter


@dataclass(frozen=True)
class Ratio:
    """A ratio of throughputs: the geometric mean over repeats.

    low, high: of the 95 % interval; None: withheld. p: the probability of a ratio as far from 1, if it is 1 in truth.
    repeats: pairs, or those of the side that has fewer.
    """

    value: float
    low: float | None
    high: float | None
    p: float | None
    repeats: int

    @property
    def excludes_one(self) -> bool:
        """Return True if the interval does not contain 1."""
        return self.p is not None and self.p < 1 - COVERAGE


def paired(here: Sequence[float], reference: Sequence[float]) -> Ratio:
    """Return the ratio of throughputs, the runs of one repeat at the same place of both. They are positive."""
    ratios = [one / other for one, other in zip(here, reference, strict=True)]
    log = LogMean.of(ratios)
    return _ratio(log.mean, log.shown, len(ratios))


def unpaired(here: LogMean, reference: LogMean, repeats: int) -> Ratio:
    """Return the ratio of two figures of different jobs, whose usual difference is in its interval.

    repeats: of the side that has fewer.
    """
    log = here.over(reference)
    return _ratio(log.mean, log.of_any_job, repeats)


def _ratio(mean: float, variance: Variance | None, repeats: int) -> Ratio:
    value = math.exp(mean)
    if repeats < LEAST_REPEATS or variance is None:
        return Ratio(value, None, None, None, repeats)
    low, high = ends(mean, variance, value)
    return Ratio(value, low, high, _probability(mean, variance), repeats)


def _probability(mean: float, variance: Variance) -> float:
    if not variance.value:
        return 0.0 if mean else 1.0
    errors = abs(mean) / math.sqrt(variance.value)
    if variance.freedom >= KNOWN:
        return math.erfc(errors / math.sqrt(2))
    from scipy.special import stdtr  # takes half a second

    return 2 * float(stdtr(variance.freedom, -errors))


def beyond_chance(ratios: Sequence[Ratio | None]) -> tuple[bool, ...]:
    """Return for each ratio of a family whether it differs from 1 by more than chance explains, by Holm's procedure.

    Of 20 intervals of 95 %, one misses 1 by chance. Holm compares the smallest p with 5 % / 20, the next one with
    5 % / 19, and so on, up to the first that is above: a wrong word among all of them is then as rare as 5 %.
    """
    known = [(ratio.p, place) for place, ratio in enumerate(ratios) if ratio is not None and ratio.p is not None]
    found = [False] * len(ratios)
    for number, (p, place) in enumerate(sorted(known)):
        if p >= (1 - COVERAGE) / (len(known) - number):
            break
        found[place] = True
    return tuple(found)
