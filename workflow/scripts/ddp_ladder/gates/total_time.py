"""Parallel efficiency by the total time of the runs, as computing centres define it: p_b T_b / (p_N T_N). Pure.

T is the time of a whole run, with its start-up, validation and end. Runs of two scales may train different numbers of
samples: T is then that of one sample. Where they train the same, the formula is unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddp_ladder.gates.groups import Group, job_of
from ddp_ladder.gates.interval import Estimate, LogMean
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.records.record import Record
from ddp_ladder.records.statistic import median
from ddp_ladder.settings.terms import Scale


def with_total_time(point: ScalePoint, groups: Mapping[tuple[str, str, Scale], Group]) -> ScalePoint:
    """Return the point with its efficiency by total time against the smallest scale that it compares with."""
    if not point.smallest_baseline:
        return point
    here, baseline = (
        [run.record for run in groups[point.mode, point.variant, scale].good]
        for scale in (point.scale, Scale.parse(point.smallest_baseline))
    )
    found = efficiency_by_total_time(here, baseline)
    if found is None:
        return point
    value, low, high = (1.0, 1.0, 1.0) if point.smallest_baseline == str(point.scale) else found
    return replace(point, efficiency_total_time=value, efficiency_total_time_low=low, efficiency_total_time_high=high)


def efficiency_by_total_time(
    here: Sequence[Record], baseline: Sequence[Record], with_startup: bool = True
) -> Estimate | None:
    """Return the efficiency and the ends of its interval; None if the samples or the start-up of a run are not known.

    here, baseline: the good runs of two scales. with_startup: False leaves it out of T, as in a training of days.
    """
    costs, base = ([gpu_s_per_sample(record, with_startup) for record in side] for side in (here, baseline))
    if not costs or not base:
        return None
    known, known_base = ([each for each in side if each] for side in (costs, base))
    if (len(known), len(known_base)) != (len(costs), len(base)):
        return None
    value = median(known_base) / median(known)
    log, log_base = (
        LogMean.of(figures, [job_of(record) for record in side])
        for figures, side in ((known, here), (known_base, baseline))
    )
    return value, *log_base.over(log).interval(value)


def trained_samples(record: Record) -> int:
    """Return the samples that all ranks of a run trained, warm-up included; 0 if they were not counted."""
    return sum(rank.samples for rank in record.ranks)


def gpu_s_per_sample(record: Record, with_startup: bool = True) -> float | None:
    """Return p T per sample: GPUs x wall time of the run in seconds / samples; None if they are not known."""
    samples, timing = trained_samples(record), record.timing
    startup_s = 0.0 if with_startup or timing is None else timing.startup_s
    if timing is None or startup_s is None or not samples:
        return None
    return record.spec.gpus * (timing.wall_s - startup_s) / samples
