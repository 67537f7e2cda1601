"""What a training costs at each scale: time, GPU hours and energy. Pure.

Hours are of the training's steps, without start-up, validation and checkpoints, unless they are called wall time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddp_ladder.gates.points import ScalePoint

J_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Hours:
    """Hours of an allocation, as centres count them: those of an application, and those that were used."""

    gpus: float  # of processes on a site without GPUs
    nodes: float

    @classmethod
    def held(cls, wall_hours: float, nodes: int, gpus: int) -> Hours:
        """Return those of jobs that hold so many nodes and GPUs."""
        return cls(gpus * wall_hours, nodes * wall_hours)

    def asked(self, runs: int | None, reserve: float) -> Hours:
        """Return what is asked for so many trainings of these hours, with the reserve. None: not said, one."""
        factor = (runs or 1) * (1 + reserve)
        return Hours(factor * self.gpus, factor * self.nodes)

    def __add__(self, other: Hours) -> Hours:
        return Hours(self.gpus + other.gpus, self.nodes + other.nodes)


@dataclass(frozen=True)
class Work:
    """A whole training: samples, steps, or epochs of the data set's size. None: not known."""

    epochs: float | None = None
    samples: float | None = None
    dataset_size: int | None = None
    steps: int | None = None
    runs: int | None = None  # trainings that the project needs
    reserve: float = 0.1  # on their hours, a fraction

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


def kwh(joules: float | None) -> float | None:
    """Return an energy as centres count it."""
    return None if joules is None else joules / J_PER_KWH


def with_cost(points: Sequence[ScalePoint], work: Work) -> tuple[ScalePoint, ...]:
    """Return the points with the cost of the whole training, as far as it is known."""
    return tuple(_with_solution(point, work.total(point.global_batch)) for point in points)


def _with_solution(point: ScalePoint, samples: float | None) -> ScalePoint:
    if samples is None or not point.samples_per_s:
        return point
    low, high = point.samples_per_s_low, point.samples_per_s_high
    hours = samples / point.samples_per_s / 3600
    of_steps, of_all, joules = point.samples_per_s_total, point.samples_per_s_end_to_end, point.energy_j_per_sample
    wall_hours = None
    if of_steps and of_all and point.startup_s is not None:
        # In the proportion of the measured runs, whatever the statistic of the steps; all of a run takes no less.
        wall_hours = point.startup_s / 3600 + hours * max(1.0, of_steps / of_all)
    return replace(
        point,
        hours_to_solution=hours,
        hours_to_solution_low=samples / high / 3600 if high else None,
        hours_to_solution_high=samples / low / 3600 if low else None,
        wall_hours_to_solution=wall_hours,
        gpu_hours_to_solution=point.world_size * hours,
        energy_kwh_to_solution=None if joules is None else kwh(joules * samples),
    )
