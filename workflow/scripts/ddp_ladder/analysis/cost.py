"""What a training costs at each scale: time, GPU hours and energy; the cheapest, fastest and recommended scale. Pure.

Hours are of the training's steps, without start-up, validation and checkpoints, unless they are called wall time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ddp_ladder.gates.points import ScalePoint

J_PER_KWH = 3.6e6
DEFAULT_EFFICIENCY = 0.75  # what centres ask for: CSC, NCI
PickKind = Literal["cheapest", "fastest", "recommended"]


@dataclass(frozen=True)
class Work:
    """A whole training. samples: of all epochs; without it, epochs of the data set's size. None: not known."""

    epochs: float | None = None
    samples: float | None = None
    dataset_size: int | None = None

    @property
    def total(self) -> float | None:
        """Return the samples of the whole training."""
        if self.samples is not None:
            return self.samples
        return None if self.epochs is None or not self.dataset_size else self.epochs * self.dataset_size

    @property
    def missing(self) -> str:
        """Return why a training that was asked for has no cost; empty if it has one, or none was asked for."""
        if self.epochs is None or self.total is not None:
            return ""
        return "the size of the data set is not recorded, so report.epochs has no effect: set report.samples"


def with_cost(points: Sequence[ScalePoint], work: Work) -> tuple[ScalePoint, ...]:
    """Return the points with the cost of the whole training, as far as it is known."""
    return tuple(_with_solution(point, work.total) for point in points)


def _with_solution(point: ScalePoint, samples: float | None) -> ScalePoint:
    low, high = point.samples_per_s_low, point.samples_per_s_high
    if samples is None or not point.samples_per_s:
        return point
    hours = samples / point.samples_per_s / 3600
    whole, startup_s, joules = point.samples_per_s_end_to_end, point.startup_s, point.energy_j_per_sample
    return replace(
        point,
        hours_to_solution=hours,
        hours_to_solution_low=samples / high / 3600 if high else None,
        hours_to_solution_high=samples / low / 3600 if low else None,
        wall_hours_to_solution=(startup_s + samples / whole) / 3600 if whole and startup_s is not None else None,
        gpu_hours_to_solution=point.world_size * hours,
        energy_kwh_to_solution=None if joules is None else joules * samples / J_PER_KWH,
    )


@dataclass(frozen=True)
class Pick:
    """A scale that stands out. rule: how it was chosen."""

    kind: PickKind
    point: ScalePoint
    rule: str


def picks(series: Sequence[ScalePoint], thresholds: Mapping[str, float | None]) -> tuple[Pick, ...]:
    """Return the cheapest, the fastest and the recommended point of one mode and variant; none if nothing compares.

    A suspect point, whose efficiency is above the ideal, is none of them.

    thresholds: the efficiency that each stage's gate asks for.
    """
    same = sorted((p for p in series if p.efficiency is not None and p.status != "check"), key=_size)
    if not same:
        return ()
    good = [p for p in same if (p.efficiency or 0) >= wanted(p, thresholds)]
    good = [p for p in good if not _is_slower_than_a_smaller(p, same)]  # a gate may ask for less than half the ideal
    cheapest = Pick(
        "cheapest", min(same, key=lambda p: p.gpu_hours_per_million_samples or 0), "least GPU hours per sample"
    )
    fastest = Pick("fastest", max(same, key=lambda p: p.samples_per_s or 0), "most samples per second")
    if not good:
        return cheapest, fastest
    return cheapest, fastest, Pick("recommended", good[-1], _rule(good[-1], thresholds))


def _is_slower_than_a_smaller(point: ScalePoint, points: Sequence[ScalePoint]) -> bool:
    smaller = [each for each in points if each.world_size < point.world_size]
    return any((each.samples_per_s or 0) > (point.samples_per_s or 0) for each in smaller)


def _size(point: ScalePoint) -> tuple[int, float]:
    return point.world_size, point.samples_per_s or 0


def wanted(point: ScalePoint, thresholds: Mapping[str, float | None]) -> float:
    """Return the efficiency that a recommended scale needs: that of its stage's gate, or of most centres."""
    asked = thresholds.get(point.stage)
    return DEFAULT_EFFICIENCY if asked is None else asked


def _rule(point: ScalePoint, thresholds: Mapping[str, float | None]) -> str:
    source = "most centres ask for" if thresholds.get(point.stage) is None else f"the gate of {point.stage} asks for"
    least = f"{100 * wanted(point, thresholds):.0f} %"
    return f"the largest scale whose efficiency against {point.baseline} is at least {least}, as {source}"
