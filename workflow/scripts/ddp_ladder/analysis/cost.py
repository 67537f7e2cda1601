"""What a training costs at each scale: time, GPU hours and energy; the recommended scale. Pure.

Hours are of the training's steps, without start-up, validation and checkpoints, unless they are called wall time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ddp_ladder.gates.points import ScalePoint

J_PER_KWH = 3.6e6
DEFAULT_EFFICIENCY = 0.75  # what centres ask for: CSC, NCI


@dataclass(frozen=True)
class Work:
    """A whole training: samples, steps, or epochs of the data set's size. None: not known.

    runs: trainings that the project needs. reserve: on their hours, a fraction.
    """

    epochs: float | None = None
    samples: float | None = None
    dataset_size: int | None = None
    steps: int | None = None
    runs: int | None = None
    reserve: float = 0.1

    def total(self, global_batch: int) -> float | None:
        """Return the samples of the whole training at a scale of this global batch."""
        if self.samples is not None:
            return self.samples
        if self.steps is not None:
            return self.steps * global_batch
        return None if self.epochs is None or not self.dataset_size else self.epochs * self.dataset_size

    @property
    def in_words(self) -> str:
        """Return ``90 epochs``."""
        if self.steps is not None:
            return f"{self.steps:,} steps"
        return f"{self.samples:,.0f} samples" if self.samples is not None else f"{self.epochs:g} epochs"

    @property
    def missing(self) -> str:
        """Return why a training that was asked for has no cost; empty if it has one, or none was asked for."""
        if self.epochs is None or self.total(1) is not None:
            return ""
        return "the size of the data set is not known, so report.epochs has no effect: set report.samples"


def with_cost(points: Sequence[ScalePoint], work: Work) -> tuple[ScalePoint, ...]:
    """Return the points with the cost of the whole training, as far as it is known."""
    return tuple(_with_solution(point, work.total(point.global_batch)) for point in points)


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


def recommended(series: Sequence[ScalePoint], thresholds: Mapping[str, float | None]) -> tuple[ScalePoint, str] | None:
    """Return the recommended point of one mode and variant, and the rule for it; None if nothing compares.

    It is the largest whose efficiency is that which its stage's gate asks for, or most centres, and that is faster than
    all smaller ones: a gate may ask for less than half the ideal. A suspect point, whose efficiency is above the ideal,
    is not recommended. thresholds: the efficiency that each stage's gate asks for.
    """
    found, most = None, 0.0
    for point in sorted(series, key=lambda point: (point.world_size, point.samples_per_s or 0)):
        if point.efficiency is None or point.samples_per_s is None or point.status == "check":
            continue
        asked = thresholds.get(point.stage)
        source = "most centres ask for" if asked is None else f"the gate of {point.stage} asks for"
        least = DEFAULT_EFFICIENCY if asked is None else asked
        if point.efficiency >= least and point.samples_per_s > most:
            rule = f"the largest scale whose efficiency against {point.baseline} is at least {100 * least:.0f} %"
            found = point, f"{rule}, as {source}"
        most = max(most, point.samples_per_s)
    return found
