"""Scaling: from records to one point per variant x mode x scale, with its ratios to the baselines. Pure: no files.

All points that are compared with each other have the same statistic.

Efficiency by total time is p_b T_b / (p_N T_N), as computing centres define it. T is the time of a whole run, with its
start-up, validation and end. Runs of two scales may train different numbers of samples: T is then that of one sample.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar, cast

from ddp_ladder.common.formats import one_of
from ddp_ladder.diagnosis.checks import weakest
from ddp_ladder.gates import notes
from ddp_ladder.gates.figures import columns
from ddp_ladder.gates.groups import Groups, RepeatGroup, groups_of, job_of, split_of_repeats
from ddp_ladder.gates.interval import Doubt, Estimate, LogMean, median_of_known
from ddp_ladder.gates.points import (
    DOUBTFUL,
    UNSTEADY,
    WITNESSED,
    Figures,
    Key,
    ScalePoint,
    Status,
    cores_of_a_rank,
    findings_of_repeats,
)
from ddp_ladder.measuring.fingerprint import batch_per_gpu_seen, global_batch_seen, gpu_models, parameters_seen
from ddp_ladder.measuring.statistic import median
from ddp_ladder.measuring.timing import startup_of
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.record import SAMPLES_PER_TIME, Record
from ddp_ladder.settings.keys import GateThresholds
from ddp_ladder.settings.terms import MOST_EFFICIENCY, PLAIN_VARIANT

DOUBTS = ("doubtful count", "whole loop", "unexplained")  # samples that may be none, time that may be training


def efficiency_by_total_time(runs: Sequence[Record], baseline: Sequence[Record]) -> Estimate | None:
    """Return the efficiency and the ends of its interval; None if the samples of a run are not known.

    runs, baseline: the good ones of two scales.
    """
    costs, base = ([gpu_s_per_sample(record) or 0.0 for record in side] for side in (runs, baseline))
    if not costs or not base or 0.0 in (*costs, *base):
        return None
    log, log_base = (LogMean.of(c, [job_of(run) for run in side]) for c, side in ((costs, runs), (base, baseline)))
    return Estimate.of(median(base) / median(costs), log_base.over(log))


def trained_samples(record: Record) -> int:
    """Return the samples that all ranks of a run trained, warm-up included; 0 if they were not counted."""
    return sum(rank.samples for rank in record.ranks)


def gpu_s_per_sample(record: Record) -> float | None:
    """Return p T per sample: GPUs x wall time of the run in seconds / samples; None if they are not known."""
    samples, timing = trained_samples(record), record.timing
    return record.spec.gpus * timing.wall_s / samples if timing and samples else None


T = TypeVar("T")


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
    names = ("variant", "mode", "stage", "nodes", "gpus_per_node", "batch_per_gpu", "global_batch")
    point = ScalePoint(
        **{name: getattr(spec, name) for name in names},
        world_size=spec.gpus,
        repeats=len(group.good),
        jobs=len(set(group.jobs)),
        baseline=str(group.baseline),
    )
    if group.good:
        point = _measured(point, group, baseline)
    if group.failed:
        return replace(point, status="failed", note=notes.failure_note(group))
    if not group.good:
        return replace(point, note=notes.why_not_run(group))
    if spec.is_plain:
        note = notes.joined(notes.no_plain_baseline(group), notes.notes_on(point, group))
        return replace(point, status="ok", note=note)
    point = point.having({"efficiency_plain": _over_plain(group, plain)}, **_differences(group, baseline))
    obstacle = notes.obstacle_to_ratio(group, baseline)
    if obstacle or baseline is None:
        note = notes.joined(obstacle, notes.notes_on(point, group))
        return replace(point, status="not comparable", note=note)
    point, excess = point.having(_ratios(group, baseline)), ""
    status: Status = "incomplete" if len(group.good) < len(group.specs) else "ok"
    efficiency = point["efficiency"]
    if efficiency is not None and efficiency > MOST_EFFICIENCY:  # the gate says what to do
        status = "check"
        excess = f"{100 * efficiency:.0f} %: more than the ideal; the baseline is slower than it should be"
    why = notes.no_plain_ratio(group, plain) if group is baseline else ""
    return replace(point, status=status, note=notes.joined(excess, notes.notes_on(point, group), why))


def _measured(point: ScalePoint, group: RepeatGroup, baseline: RepeatGroup | None) -> ScalePoint:
    """Return the point with all but ratios; batches as they were seen replace those of the plan."""
    alone = [run.record for run in baseline.good] if baseline and baseline is not group else []
    rate, records = rate_of(group), [run.record for run in group.good]
    parts, facts = split_of_repeats(group) or ({}, None)
    # Of the repeat with the median start-up, or wall time: medians of parts do not add up.
    startups = [parts_s for record in records if (parts_s := startup_of(record.ranks))]
    owners = [record.owners_s for record in records if record.owners_s]
    startup = _lower_median(startups, lambda parts_s: parts_s["startup_s"] or 0.0)
    figures: dict[str, Estimate | float | None] = {
        **{column.key: median_of_known([*map(column.of_run, records)]) for column in columns("csv") if column.of_run},
        **startup,
        **parts,
        "samples_per_s": rate,
        "step_time_s": Estimate.of(group.step_time_s, group.log_step_time),
        "gpu_hours_per_million_samples": group.first.gpus * (1e6 / rate / 3600),
    }
    batches = {"batch_per_gpu": batch_per_gpu_seen(records[0]), "global_batch": global_batch_seen(records[0])}
    return point.having(
        {cast(Key, key): figure for key, figure in figures.items() if key not in batches},
        **batches,
        step=facts,
        tokens_per_sample=one_of(record.fingerprint.tokens_per_sample for record in records),
        statistic=group.statistic,
        flops=records[0].flops,
        witness=records[0].witness,
        gpu=gpu_models(records[0]),
        parameters=one_of(map(parameters_seen, records)),
        simulated=next((record.world.simulated for record in records if record.world.simulated), None),
        findings=findings_of_repeats(records, cores_of_a_rank(alone)),
        owners_s=tuple(_lower_median(owners, lambda owners_s: sum(owners_s.values())).items()),
    )


def rate_of(group: RepeatGroup) -> Estimate:
    """Return the samples/s of a group with good runs, and why they may not be those of a longer one."""
    doubts = []
    if unsteady := notes.unsteady(group):
        doubts.append(Doubt(UNSTEADY, "the step times were not steady", unsteady))
    for remark in (remark for run in group.good for remark in run.record.remarks if remark.kind in DOUBTS):
        doubts.append(Doubt(DOUBTFUL, remark.measured, remark.next, str(group.first.scale)))
        break
    witness = group.good[0].record.witness
    is_witnessed = witness is not None and witness.is_counted and all(doubt.kind != DOUBTFUL for doubt in doubts)
    source = WITNESSED if is_witnessed else weakest(run.throughput.source for run in group.good)
    return Estimate.of(group.samples_per_s, group.log_rate, source, tuple(doubts))


def _lower_median(repeats: Sequence[Mapping[str, T]], total: Callable[[Mapping[str, T]], float]) -> Mapping[str, T]:
    """Return the parts of the repeat with the median total, the lower of two; empty without repeats."""
    return sorted(repeats, key=total)[(len(repeats) - 1) // 2] if repeats else {}


def _ratios(group: RepeatGroup, baseline: RepeatGroup) -> Figures:
    total = efficiency_by_total_time(*([run.record for run in side.good] for side in (group, baseline)))
    rate = rate_of(group)
    if group is baseline:  # by definition, not by measurement
        one = replace(rate, value=1.0, low=1.0, high=1.0, log=None)
        return {"speedup": one, "efficiency": one, "efficiency_total_time": total and one}
    speedup = rate.over(rate_of(baseline))
    efficiency = speedup / (group.first.gpus / baseline.first.gpus)
    return {"speedup": speedup, "efficiency": efficiency, "efficiency_total_time": total}


def _over_plain(group: RepeatGroup, plain: RepeatGroup | None) -> Estimate | None:
    if plain is None or notes.no_plain_ratio(group, plain):
        return None
    if SAMPLES_PER_TIME in (group.statistic, plain.statistic):  # both sides must have the same one
        group, plain = (replace(side, statistic=SAMPLES_PER_TIME) for side in (group, plain))
    return rate_of(group).over(rate_of(plain)) / group.first.gpus


def _differences(group: RepeatGroup, baseline: RepeatGroup | None) -> dict[str, Any]:
    """Return the fields that forbid the ratio and the differences that the user allows."""
    own = baseline.all_differences if baseline else ()
    differences = tuple(dict.fromkeys((*notes.differences_to(group, baseline), *group.all_differences, *own)))
    forbidden = group.forbidden(differences)
    return {
        "differing": tuple(dict.fromkeys(item.field for item in forbidden)),
        "allowed": notes.in_words([item for item in differences if item not in forbidden]),
    }
