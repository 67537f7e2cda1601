"""How long a run of a scale that was not measured will take, from runs of a scale below. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddp_ladder.records.record import Record
from ddp_ladder.records.statistic import median
from ddp_ladder.settings.terms import Scale

LIMITS = ("max_steps", "max_seconds")


@dataclass(frozen=True)
class RunLength:
    """What the runs of one scale took: medians. wall_s with startup_s; steps and step_time_s of the slowest rank."""

    scale: Scale
    wall_s: float
    startup_s: float
    steps: float
    step_time_s: float
    batch: float  # global
    ended_by: str


def run_length(records: Sequence[Record], batch: float) -> RunLength | None:
    """Return what the good runs of a scale took; None without one. batch: the global one that they really had."""
    good = [(one, one.timing) for one in records if one.status == "ok" and one.timing]
    if not good:
        return None
    limits = {rank.ended_by for record, _ in good for rank in record.ranks} & set(LIMITS)
    return RunLength(
        scale=good[0][0].spec.scale,
        wall_s=median([timing.wall_s for _, timing in good]),
        startup_s=median([timing.startup_s or 0.0 for _, timing in good]),
        steps=median([max(rank.steps for rank in record.ranks) for record, _ in good]),
        step_time_s=median([timing.step_time_s for _, timing in good]),
        batch=batch,
        ended_by=sorted(limits)[0] if limits else "script",
    )


def wall_s_at(below: Sequence[RunLength], step_time_s: float, batch: float) -> float | None:
    """Return the time of a run with this step time and global batch; None if nothing was measured below.

    below: smallest scale first. Training grows with steps and step time; start-up stays as it was.
    """
    if not below:
        return None
    near = below[-1]
    trained_s = max(0.0, near.wall_s - near.startup_s)
    if near.ended_by == "max_seconds" or not near.steps or not near.step_time_s:
        return near.wall_s
    growth = steps_at(below, batch) * step_time_s / (near.steps * near.step_time_s)
    return near.startup_s + trained_s * growth


def steps_at(below: Sequence[RunLength], batch: float) -> float:
    """Return the steps of a run with this global batch: as many as below, or those of as many samples.

    A script that counts epochs makes fewer steps with a larger batch; two measured scales tell. After a single one, or
    if measure.max_steps ended the runs, the steps are taken as equal, which is the longer.
    """
    near, first = below[-1], below[0]
    if near.ended_by == "max_steps" or near.batch <= first.batch:
        return near.steps
    fewer = near.steps * near.batch / (first.steps * first.batch) if first.steps else 0.0  # 1: as many samples
    as_many_steps = near.batch / first.batch
    counts_samples = abs(fewer - 1) < abs(fewer - as_many_steps)
    return near.steps * near.batch / batch if counts_samples else near.steps
