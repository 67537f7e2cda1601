"""Scaling: from records to one point per variant x mode x scale, with its ratios to the baselines. Pure: no files.

All points that are compared with each other have the same statistic.

Efficiency by total time is p_b T_b / (p_N T_N), as computing centres define it. T is the time of a whole run, with its
start-up, validation and end. Runs of two scales may train different numbers of samples: T is then that of one sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from ddp_ladder.common.formats import one_of
from ddp_ladder.gates import notes
from ddp_ladder.gates.figures import columns
from ddp_ladder.gates.groups import Groups, RepeatGroup, groups_of, job_of, split_of_repeats
from ddp_ladder.gates.interval import Estimate, LogMean, divided, median_of_known
from ddp_ladder.gates.points import ScalePoint, Status, cores_of_a_rank, findings_of_repeats
from ddp_ladder.measuring.fingerprint import batch_per_gpu_seen, global_batch_seen, gpu_models, parameters_seen
from ddp_ladder.measuring.statistic import median
from ddp_ladder.measuring.timing import startup_of
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.record import SAMPLES_PER_TIME, Record
from ddp_ladder.settings.keys import GateThresholds
from ddp_ladder.settings.terms import MOST_EFFICIENCY, PLAIN_VARIANT

DOUBTFUL = (
    "doubtful count",
    "whole loop",
    "unexplained",
)  # remarks: samples that may be none, time that may be training


def efficiency_by_total_time(runs: Sequence[Record], baseline: Sequence[Record]) -> Estimate | None:
    """Return the efficiency and the ends of its interval; None if the samples of a run are not known.

    runs, baseline: the good ones of two scales.
    """
    costs, base = ([gpu_s_per_sample(record) or 0.0 for record in side] for side in (runs, baseline))
    if not costs or not base or 0.0 in (*costs, *base):
        return None
    value = median(base) / median(costs)
    log, log_base = (LogMean.of(c, [job_of(run) for run in side]) for c, side in ((costs, runs), (base, baseline)))
    return value, *log_base.over(log).interval(value)


def trained_samples(record: Record) -> int:
    """Return the samples that all ranks of a run trained, warm-up included; 0 if they were not counted."""
    return sum(rank.samples for rank in record.ranks)


def gpu_s_per_sample(record: Record) -> float | None:
    """Return p T per sample: GPUs x wall time of the run in seconds / samples; None if they are not known."""
    samples, timing = trained_samples(record), record.timing
    return record.spec.gpus * timing.wall_s / samples if timing and samples else None


T = TypeVar("T")
Fields = dict[str, Any]  # of a ScalePoint


def _estimates(**estimates: Estimate | None) -> Fields:
    """Return those figures that are known, and the ends of their intervals."""
    ends, known = ("", "_low", "_high"), {key: estimate for key, estimate in estimates.items() if estimate}
    return {key + end: value for key, estimate in known.items() for end, value in zip(ends, estimate, strict=True)}


def scale_points(
    runs: Sequence[RunSpec],
    records: Mapping[str, Record],
    may_differ: Collection[str] = (),
    gates: Mapping[str, GateThresholds] = MappingProxyType({}),
) -> tuple[ScalePoint, ...]:
    """Return one point per variant x mode x scale, sorted by mode, variant and scale as in ``runs``.

    records: by ``RunSpec.name``. A run without one has not been run.
    may_differ: fields of the fingerprint that the user allows to differ between both sides of a ratio.
    gates: by stage; a stage that is left out has the usual difference between jobs.
    """
    groups = groups_of(runs, records, may_differ, gates)
    return tuple(_point(group, groups) for group in groups.values())


def _point(group: RepeatGroup, groups: Groups) -> ScalePoint:
    """Return the point of a group: what was planned, its own figures, its ratios, and then what is said of them."""
    spec = group.first
    baseline = groups.get((spec.mode, spec.variant, group.baseline))
    plain = groups.get((spec.mode, PLAIN_VARIANT, group.baseline))
    fields = _planned(group) | (_figures(group, baseline) if group.good else {})
    if group.failed:
        return ScalePoint(**fields, status="failed", note=notes.failure_note(group))
    if not group.good:
        return ScalePoint(**fields, status="not run", note=notes.why_not_run(group))
    if spec.is_plain:
        point = ScalePoint(**fields, status="ok")
        return replace(point, note=notes.joined(notes.no_plain_baseline(group), notes.notes_on(point, group)))
    fields |= _plain_ratio(group, plain) | _differences(group, baseline)
    obstacle = notes.obstacle_to_ratio(group, baseline)
    if obstacle or baseline is None:
        point = ScalePoint(**fields, status="not comparable")
        return replace(point, note=notes.joined(obstacle, notes.notes_on(point, group)))
    fields |= _ratios(group, baseline) | {"unsteady": fields["unsteady"] or notes.unsteady(baseline)}
    point, excess = ScalePoint(**fields), ""
    status: Status = "incomplete" if len(group.good) < len(group.specs) else "ok"
    if point.efficiency is not None and point.efficiency > MOST_EFFICIENCY:  # the gate says what to do
        status, percent = "check", f"{100 * point.efficiency:.0f} %"
        excess = f"{percent}: more than the ideal; the baseline is slower than it should be"
    why = notes.no_plain_ratio(group, plain) if group is baseline else ""
    return replace(point, status=status, note=notes.joined(excess, notes.notes_on(point, group), why))


def _planned(group: RepeatGroup) -> Fields:
    names = ("variant", "mode", "stage", "nodes", "gpus_per_node", "batch_per_gpu", "global_batch")
    return {
        **{name: getattr(group.first, name) for name in names},
        "world_size": group.first.gpus,
        "repeats": len(group.good),
        "jobs": len(set(group.jobs)),
        "baseline": str(group.baseline),
    }


def _figures(group: RepeatGroup, baseline: RepeatGroup | None) -> Fields:
    """Return the figures that are no ratios; batches as they were seen replace those of the plan."""
    alone = [run.record for run in baseline.good] if baseline and baseline is not group else []
    rate, step, records = group.samples_per_s, group.step_time_s, [run.record for run in group.good]
    parts, facts = split_of_repeats(group) or ({}, None)
    remarks = (remark for record in records for remark in record.remarks if remark.kind in DOUBTFUL)
    doubt = next(remarks, None)
    of_run = {column.key: column.of_run for column in columns("csv") if column.of_run}
    # Of the repeat with the median start-up, or wall time: medians of parts do not add up.
    startups = [startup for record in records if (startup := startup_of(record.ranks))]
    owners = [record.owners_s for record in records if record.owners_s]
    return {
        **{key: median_of_known([read(record) for record in records]) for key, read in of_run.items()},
        **_lower_median(startups, lambda startup: startup["startup_s"] or 0.0),
        **parts,
        **_estimates(samples_per_s=(rate, *group.log_rate.interval(rate))),
        **_estimates(step_time_s=(step, *group.log_step_time.interval(step))),
        "step": facts,
        "batch_per_gpu": batch_per_gpu_seen(records[0]),
        "global_batch": global_batch_seen(records[0]),
        "gpu_hours_per_million_samples": group.first.gpus * (1e6 / rate / 3600),
        "tokens_per_sample": one_of(record.fingerprint.tokens_per_sample for record in records),
        "statistic": group.statistic,
        "log_rate": group.log_rate,
        "unsteady": notes.unsteady(group),
        "flops": records[0].flops,
        "witness": records[0].witness,
        "gpu": gpu_models(records[0]),
        "parameters": one_of(map(parameters_seen, records)),
        "simulated": next((record.world.simulated for record in records if record.world.simulated), None),
        "findings": findings_of_repeats(records, cores_of_a_rank(alone)),
        **({"unexplained": doubt.measured, "unexplained_next": doubt.next} if doubt else {}),
        "owners_s": tuple(_lower_median(owners, lambda owners_s: sum(owners_s.values())).items()),
    }


def _lower_median(repeats: Sequence[Mapping[str, T]], total: Callable[[Mapping[str, T]], float]) -> Mapping[str, T]:
    """Return the parts of the repeat with the median total, the lower of two; empty without repeats."""
    return sorted(repeats, key=total)[(len(repeats) - 1) // 2] if repeats else {}


def _ratios(group: RepeatGroup, baseline: RepeatGroup) -> Fields:
    total = efficiency_by_total_time(*([run.record for run in side.good] for side in (group, baseline)))
    if group is baseline:  # by definition, not by measurement
        one = (1.0, 1.0, 1.0)
        return _estimates(speedup=one, efficiency=one, efficiency_total_time=total and one)
    times, speedup = group.first.gpus / baseline.first.gpus, group.samples_per_s / baseline.samples_per_s
    log = group.log_rate.over(baseline.log_rate)
    estimate = (speedup, *log.interval(speedup))
    return {
        **_estimates(speedup=estimate, efficiency=divided(estimate, times), efficiency_total_time=total),
        "log_efficiency": replace(log, mean=log.mean - math.log(times)),
    }


def _plain_ratio(group: RepeatGroup, plain: RepeatGroup | None) -> Fields:
    if plain is None or notes.no_plain_ratio(group, plain):
        return {}
    if SAMPLES_PER_TIME in (group.statistic, plain.statistic):  # both sides must have the same one
        group, plain = (replace(side, statistic=SAMPLES_PER_TIME) for side in (group, plain))
    rate = group.samples_per_s / plain.samples_per_s
    ends = group.log_rate.over(plain.log_rate).interval(rate)
    return _estimates(efficiency_plain=divided((rate, *ends), group.first.gpus))


def _differences(group: RepeatGroup, baseline: RepeatGroup | None) -> Fields:
    """Return the fields that forbid the ratio and the differences that the user allows."""
    own = baseline.all_differences if baseline else ()
    differences = tuple(dict.fromkeys((*notes.differences_to(group, baseline), *group.all_differences, *own)))
    forbidden = group.forbidden(differences)
    return {
        "differing": tuple(dict.fromkeys(item.field for item in forbidden)),
        "allowed": notes.in_words([item for item in differences if item not in forbidden]),
    }
