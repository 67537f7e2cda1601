"""The measured scales of one series: what a prediction starts from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from ddp_ladder.gates.interval import factor
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.records.statistic import median
from ddp_ladder.settings.terms import Mode, Scale

COUNTED = ("ok", "incomplete")


class Figures(Protocol):
    """A scale's figures, as the gates and scaling.csv have them."""

    @property
    def scale(self) -> Scale: ...
    @property
    def samples_per_s(self) -> float | None: ...
    @property
    def samples_per_s_low(self) -> float | None: ...
    @property
    def samples_per_s_high(self) -> float | None: ...
    @property
    def status(self) -> str: ...
    @property
    def smallest_baseline(self) -> str: ...


_Figures = TypeVar("_Figures", bound=Figures)


@dataclass(frozen=True)
class Measured:
    """One measured scale: samples per second of all its GPUs, one figure for each repeat."""

    scale: Scale
    repeats: tuple[float, ...]

    @property
    def samples_per_s(self) -> float:
        return median(self.repeats)

    @property
    def gpu_s_per_sample(self) -> float:
        """Return the time that one GPU spends on each of its samples, in seconds."""
        return self.scale.world_size / self.samples_per_s


@dataclass(frozen=True)
class Series:
    """The measured scales of one mode, smallest first; all the same program on the same kind of node."""

    mode: Mode
    points: tuple[Measured, ...]
    noise: float | None = None
    """Half the 95 % interval of each point, relative, if it is known otherwise than from the repeats."""

    @classmethod
    def of(cls, mode: Mode, figures: Sequence[tuple[Scale, float]], noise: float | None = None) -> Series:
        """Return a series from (scale, samples/s); several figures of one scale are its repeats."""
        repeats: dict[Scale, list[float]] = {}
        for scale, rate in figures:
            repeats.setdefault(scale, []).append(rate)
        ordered = sorted(repeats, key=lambda scale: (scale.world_size, scale.nodes))
        return cls(mode, tuple(Measured(scale, tuple(repeats[scale])) for scale in ordered), noise)

    @property
    def smallest(self) -> Measured:
        return self.points[0]

    @property
    def largest(self) -> Measured:
        return self.points[-1]

    def at(self, scale: Scale) -> Measured | None:
        """Return the measurement of a scale; None if it was not measured."""
        return next((point for point in self.points if point.scale == scale), None)

    def noise_of(self, point: Measured) -> float:
        """Return half the 95 % interval of a point, relative: Student's t, with the variance of all points' repeats.

        0 if no scale has several repeats, and nothing else is known.
        """
        if self.noise is not None:
            return self.noise
        logs = [np.log(point.repeats) for point in self.points]
        freedom = sum(len(values) - 1 for values in logs)
        if not freedom:
            return 0.0
        variance = sum(float(((values - values.mean()) ** 2).sum()) for values in logs) / freedom
        return factor(freedom) * math.sqrt(variance / len(point.repeats))


def doublings(small: Scale, large: Scale) -> float:
    """Return how often the number of GPUs doubles from one scale to another; negative if it becomes smaller."""
    return math.log2(large.world_size / small.world_size)


def series_of(points: Sequence[ScalePoint], variant: str, mode: Mode) -> Series:
    """Return the series of a variant and mode from the gates' points."""
    return series_from(mode, [point for point in points if (point.variant, point.mode) == (variant, mode)])


def series_from(mode: Mode, points: Sequence[Figures]) -> Series:
    """Return the series of the scales that compare, with the noise that their intervals show."""
    good = comparable(points)
    halves = [
        math.log(point.samples_per_s_high / point.samples_per_s_low) / 2
        for point in good
        if point.samples_per_s_low and point.samples_per_s_high
    ]
    figures = [(point.scale, point.samples_per_s) for point in good if point.samples_per_s]
    return Series.of(mode, figures, median(halves) if halves else None)


def comparable(points: Sequence[_Figures]) -> list[_Figures]:
    """Return the measured scales that compare with the ladder's first one, without failed and suspect ones.

    If more scales compare with the smallest one of their own, as all above a first scale with other settings: those.
    """
    groups: dict[str, list[_Figures]] = {"": []}
    for point in points:
        if point.samples_per_s and point.status in COUNTED:
            groups[""].append(point)
        elif point.samples_per_s and point.status == "not comparable" and point.smallest_baseline:
            groups.setdefault(point.smallest_baseline, []).append(point)
    return max(groups.values(), key=len)
