"""Intervals of 95 % of a figure over repeats, and of a ratio of two such figures. Pure.

The repeats of one job run on the same nodes, one after the other: their figures show what differs within this job, and
their interval is of this job. It is Student's t on their logarithms (a rate's noise is relative); that of a ratio is
Welch's, with the degrees of freedom of Welch and Satterthwaite. Another job has other nodes, another place in the
network and other neighbours. What jobs differ by is measured by several jobs of a scale; the interval is then that of
Student's t on the means of the jobs, and jobs_differ_percent enters as one more observation of the variance between
jobs. One job cannot measure that variance: its interval leaves it out, and a gate adds jobs_differ_percent before it
calls a verdict certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ddp_ladder.common import formats
from ddp_ladder.common.findings import Finding
from ddp_ladder.common.formats import grouped, in_short
from ddp_ladder.common.model import IN_A_MODEL
from ddp_ladder.measuring.statistic import COVERAGE, STANDARD_ERRORS, median
from ddp_ladder.settings.terms import JOBS_DIFFER_PERCENT

Ends = tuple[float, float] | tuple[None, None]

WIDEST = 4.0  # high / low of an interval: the figure of a wider one is not known
KNOWN = 1e9  # degrees of freedom of a variance that is given, not measured: as good as infinite, and a number in JSON


@dataclass(frozen=True)
class Variance:
    """The variance of a mean of logarithms, and its degrees of freedom."""

    __pydantic_config__: ClassVar = IN_A_MODEL
    value: float = 0.0
    freedom: float = KNOWN

    def __add__(self, other: Variance) -> Variance:
        """Return the variance of a sum of independent parts, with the degrees of freedom of Welch and Satterthwaite."""
        value = self.value + other.value
        parts = self.value**2 / self.freedom + other.value**2 / other.freedom
        return Variance(value, value**2 / parts if parts else KNOWN)

    @property
    def half_width(self) -> float:
        """Return half the width of the interval, in logarithms."""
        return factor(self.freedom) * math.sqrt(self.value) if self.value else 0.0


@dataclass(frozen=True)
class LogMean:
    """Mean of the logarithms of a figure, and the parts of its variance."""

    __pydantic_config__: ClassVar = IN_A_MODEL
    mean: float
    repeats: Variance | None  # falls with their number; None: a single run does not show it
    steps: Variance  # of slow steps that recur, on the same steps of all repeats; falls with the length of the runs
    between: Variance  # what jobs differ by; falls with their number
    jobs: int = 1  # of the side that has more

    @classmethod
    def of(
        cls,
        figures: Sequence[float],
        jobs: Sequence[Hashable] = (),
        steps: Variance = Variance(),
        differ_percent: float = JOBS_DIFFER_PERCENT,
    ) -> LogMean:
        """Return that of the repeats' figures, which are positive.

        jobs: the job of each repeat; empty: all are of one. differ_percent: the usual standard deviation between jobs.
        """
        logs = [*grouped(zip(jobs or [None] * len(figures), map(math.log, figures), strict=True)).values()]
        means = [float(np.mean(of_job)) for of_job in logs]
        count, spare = len(means), len(figures) - len(means)
        usual = (differ_percent / 100) ** 2
        within = sum(float(np.var(of_job)) * len(of_job) for of_job in logs) / spare if spare else 0.0
        noise = within * sum(1 / len(of_job) for of_job in logs) / count**2  # of the mean of the jobs' means
        repeats = Variance(noise, spare) if spare else Variance() if count > 1 else None
        between = Variance(usual)
        if count > 1:
            # The usual difference, with the noise of a job's repeats, counts like one more job.
            of_a_job = (usual + count * noise + count * float(np.var(means))) / count
            between = Variance(max(0.0, of_a_job / count - noise), count)
        return cls(float(np.mean(means)), repeats, steps, between, count)

    def over(self, other: LogMean) -> LogMean:
        """Return that of a ratio: this figure over another one, measured independently."""
        repeats = None if self.repeats is None or other.repeats is None else self.repeats + other.repeats
        steps, between = self.steps + other.steps, self.between + other.between
        return LogMean(self.mean - other.mean, repeats, steps, between, max(self.jobs, other.jobs))

    def times(self, by: float) -> LogMean:
        """Return that of the figure times a constant above 0."""
        return replace(self, mean=self.mean + math.log(by))

    @property
    def of_estimate(self) -> LogMean:
        """Return it for a judgement of a single repeat by its estimate alone, and by what jobs differ by."""
        return replace(self, repeats=self.repeats or Variance())

    @property
    def shown(self) -> Variance | None:
        """Return the variance of the interval: of this job or, if several measured it, of all; None if not known."""
        if self.repeats is None:
            return None
        return self.repeats + self.steps + (self.between if self.jobs > 1 else Variance())

    def interval(self, estimate: float) -> Ends:
        """Return the shown interval; (None, None) if it is not known, or wider than a factor of 4.

        It is widened to hold the estimate: that is the median of the repeats, and not their mean.
        """
        variance = self.shown
        if variance is None or 2 * variance.half_width > math.log(WIDEST):
            return None, None
        if not variance.value:
            return estimate, estimate
        low, high = (math.exp(self.mean + side * variance.half_width) for side in (-1, 1))
        return min(low, estimate), max(high, estimate)

    def interval_of_any_job(self, estimate: float) -> Ends:
        """Return the interval with what jobs differ by, measured or usual; (None, None) if it is not known."""
        return replace(self, jobs=max(2, self.jobs)).interval(estimate)


def half_width_percent(log: LogMean) -> float | None:
    """Return half the width of an interval, in per cent of the figure, as far as more repeats can narrow it.

    What jobs differ by is left out: more repeats in the same job do not show it. None: of a single repeat.
    """
    return None if log.repeats is None else 100 * math.expm1((log.repeats + log.steps).half_width)


def factor(freedom: float) -> float:
    """Return half the width of an interval in standard errors: Student's t, for any degrees of freedom from 1 on."""
    if freedom >= KNOWN:
        return STANDARD_ERRORS
    width, slope = STANDARD_ERRORS, _peak(freedom) * 2 / math.sqrt(freedom)
    # Newton's method from below, where the probability is concave: it never steps too far.
    while (missing := COVERAGE - student_t(width, freedom)) > 1e-12:
        width += missing / (slope * (1 + width**2 / freedom) ** (-(freedom + 1) / 2))
    return width


def student_t(errors: float, freedom: float) -> float:
    """Return the probability that Student's t is within so many standard errors of 0.

    With t = sqrt(freedom) tan(angle), it is an integral of a power of the cosine, here by Simpson's rule. scipy.special
    has it as well, and takes as long to import as all the rest of a gate.
    """
    angles = np.linspace(0.0, math.atan(errors / math.sqrt(freedom)), 257)
    heights = np.cos(angles) ** (freedom - 1)
    inner = 4 * heights[1::2].sum() + 2 * heights[2:-1:2].sum()
    return 2 * _peak(freedom) * float((heights[0] + inner + heights[-1]) * angles[1] / 3)


def _peak(freedom: float) -> float:
    """Return the density of the angle of ``student_t`` at 0."""
    return math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval and its doubts. What is computed from it has these, too."""

    __pydantic_config__: ClassVar = IN_A_MODEL
    value: float
    low: float | None = None  # end of the interval; None: not known
    high: float | None = None
    log: LogMean | None = None  # its uncertainty; None: it is exact, or not known
    source: str = ""  # how its samples were counted: "witnessed", or a Source of raw_models
    doubts: tuple[Finding, ...] = ()  # why it may be wrong, one of each kind; place: the scale whose figure it is

    @classmethod
    def of(cls, value: float, log: LogMean, source: str = "", doubts: tuple[Finding, ...] = ()) -> Estimate:
        """Return a figure with the interval of its logarithm."""
        low, high = log.interval(value)
        return cls(value, low, high, log, source, doubts)

    @property
    def ends(self) -> tuple[float, float]:
        """Return the ends of its interval, which are its value if that is not known."""
        if self.low is None or self.high is None:
            return self.value, self.value
        return self.low, self.high

    def interval(self, text: Callable[[float], str]) -> str:
        """Return ``[83-87 %]``; empty if it is not known, or, as at the baseline of a ratio, a point."""
        low, high = self.ends
        return formats.interval(text(low), text(high)) if low < high else ""

    def shown(self, text: Callable[[float], str]) -> str:
        """Return ``85 % [83-87 %]``."""
        return f"{text(self.value)} {self.interval(text)}".rstrip()

    def alike(self, value: float | None) -> Estimate | None:
        """Return another figure with its source and doubts, and without an interval; None if that is not known."""
        return None if value is None else Estimate(value, source=self.source, doubts=self.doubts)

    def over(self, other: Estimate) -> Estimate:
        """Return its ratio to a figure that was measured independently, with the doubts of both."""
        own = {doubt.kind for doubt in self.doubts}
        doubts = (*self.doubts, *(doubt for doubt in other.doubts if doubt.kind not in own))
        ratio, log = self.value / other.value, self.log and other.log and self.log.over(other.log)
        low, high = log.interval(ratio) if log else (None, None)
        return Estimate(ratio, low, high, log, self.source, doubts)

    def __mul__(self, by: float) -> Estimate:
        value, low, high = self.value * by, self.low and self.low * by, self.high and self.high * by
        return replace(self, value=value, low=low, high=high, log=self.log and self.log.times(by))

    __rmul__ = __mul__

    def __truediv__(self, by: float) -> Estimate:
        value, low, high = self.value / by, self.low and self.low / by, self.high and self.high / by
        return replace(self, value=value, low=low, high=high, log=self.log and self.log.times(1 / by))

    def __rtruediv__(self, constant: float) -> Estimate:
        """Return a constant over it, such as the hours of so many samples."""
        low, high = (end and constant / end for end in (self.high, self.low))
        log = self.log and replace(self.log, mean=-self.log.mean).times(constant)
        return replace(self, value=constant / self.value, low=low, high=high, log=log)


def doubt_in_words(doubt: Finding) -> str:
    """Return ``at 1x2 the number of samples is doubtful``."""
    return f"at {doubt.place} {doubt.measured}" if doubt.place else doubt.measured


def in_doubt(*figures: Estimate | None) -> str:
    """Return ``at 1x2 and 1x4 the number of samples is doubtful``: the doubts of all figures; empty without any."""
    doubts = dict.fromkeys(doubt for figure in figures if figure for doubt in figure.doubts)
    places = grouped((doubt.measured, doubt.place) for doubt in doubts)
    return "; ".join(f"at {in_short(where, 4)} {what}" if any(where) else what for what, where in places.items())


def median_of_known(values: Sequence[float | None]) -> float | None:
    """Return the median of the measured values; None if there are none."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
