"""What a training costs at each scale: time, GPU hours, the hours of the centre, energy and its carbon. Pure.

Hours are of the training's steps, without start-up, validation and checkpoints, unless they are called wall time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddp_ladder.common.grouping import one_of
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.plan.units import Units
from ddp_ladder.records.record import Record

J_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Work:
    """A whole training: samples, tokens, steps, or epochs of the data set's size. None: not known."""

    epochs: float | None = None
    samples: float | None = None
    dataset_size: int | None = None
    steps: int | None = None
    runs: int | None = None  # trainings that the project needs
    reserve: float = 0.1  # on their hours, a fraction
    tokens: float | None = None
    tokens_per_sample: int | None = None

    @classmethod
    def seen_in(cls, records: Sequence[Record], said: int | None, **asked: Any) -> Work:
        """Return a training on the data that good runs saw. said: tokens of a sample in the settings."""
        sizes = (record.fingerprint.dataset_size for record in records)
        tokens = one_of(record.fingerprint.tokens_per_sample for record in records) if said is None else said
        return cls(dataset_size=next(filter(None, sizes), None), tokens_per_sample=tokens, **asked)

    def total(self, global_batch: int) -> float | None:
        """Return the samples of the whole training at a scale of this global batch."""
        if self.samples is not None:
            return self.samples
        if self.steps is not None:
            return self.steps * global_batch
        if self.tokens is not None:
            return self.tokens / self.tokens_per_sample if self.tokens_per_sample else None
        return None if self.epochs is None or not self.dataset_size else self.epochs * self.dataset_size

    @property
    def in_words(self) -> str:
        """Return ``90 epochs``."""
        if self.steps is not None:
            return f"{self.steps:,} steps"
        if self.tokens is not None:
            return f"{self.tokens:,.0f} tokens"
        return f"{self.samples:,.0f} samples" if self.samples is not None else f"{self.epochs:g} epochs"

    @property
    def missing(self) -> str:
        """Return why a training that was asked for has no cost; empty if it has one, or none was asked for."""
        if (self.epochs is None and self.tokens is None) or self.total(1) is not None:
            return ""
        if self.tokens is not None:
            return (
                "the tokens of a sample are not known, so report.tokens has no effect: set workload.tokens_per_sample"
            )
        return "the size of the data set is not known, so report.epochs has no effect: set report.samples"


def kwh(joules: float | None) -> float | None:
    """Return an energy as centres count it."""
    return None if joules is None else joules / J_PER_KWH


def with_tokens(point: ScalePoint, said: int | None) -> ScalePoint:
    """Return the point with its tokens/s, if they are known. said: the tokens of a sample in the settings."""
    tokens = point.tokens_per_sample if said is None else said
    if tokens is None or point.samples_per_s is None:
        return point
    rate = tokens * point.samples_per_s
    return replace(point, tokens_per_sample=tokens, tokens_per_s=rate, tokens_per_s_per_gpu=rate / point.world_size)


def with_cost(points: Sequence[ScalePoint], work: Work, units: Units) -> tuple[ScalePoint, ...]:
    """Return the points with the cost of a million samples and of the whole training, as far as they are known."""
    return tuple(_with_solution(_in_hours(point, units), work.total(point.global_batch), units) for point in points)


def _in_hours(point: ScalePoint, units: Units) -> ScalePoint:
    if point.gpu_hours_per_million_samples is None:
        return point
    return replace(point, centre_hours_per_million_samples=point.cost_per_million.of_centre(units.hours))


def _with_solution(point: ScalePoint, samples: float | None, units: Units) -> ScalePoint:
    if samples is None or not point.samples_per_s:
        return point
    low, high = point.samples_per_s_low, point.samples_per_s_high
    hours = samples / point.samples_per_s / 3600
    of_steps, of_all, joules = point.samples_per_s_total, point.samples_per_s_end_to_end, point.energy_j_per_sample
    wall_hours = None
    if of_steps and of_all and point.startup_s is not None:
        # In the proportion of the measured runs, whatever the statistic of the steps; all of a run takes no less.
        wall_hours = point.startup_s / 3600 + hours * max(1.0, of_steps / of_all)
    energy_kwh = None if joules is None else kwh(joules * samples)
    return replace(
        point,
        hours_to_solution=hours,
        hours_to_solution_low=samples / high / 3600 if high else None,
        hours_to_solution_high=samples / low / 3600 if low else None,
        wall_hours_to_solution=wall_hours,
        gpu_hours_to_solution=point.world_size * hours,
        centre_hours_to_solution=point.cost(hours).of_centre(units.hours),
        energy_kwh_to_solution=energy_kwh,
        carbon_kg_to_solution=units.carbon_kg(energy_kwh),
    )
