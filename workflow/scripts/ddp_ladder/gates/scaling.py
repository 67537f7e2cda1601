"""Scaling: from records to one point per variant x mode x scale. Pure: no files.

All points that are compared with each other have the same statistic.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

from ddp_ladder.gates.cost import with_cost_per_million_samples
from ddp_ladder.gates.figures import columns
from ddp_ladder.gates.groups import Baselines, Group, Groups, groups_of, with_one_statistic
from ddp_ladder.gates.interval import divided, median_of_known
from ddp_ladder.gates.notes import (
    differences_to,
    excess_note,
    failure_note,
    in_words,
    joined,
    no_plain_baseline,
    no_plain_ratio,
    notes_on,
    obstacle_to_ratio,
    unsteady,
    why_not_run,
)
from ddp_ladder.gates.other_baselines import instead_of_the_baseline, with_other_baselines
from ddp_ladder.gates.pop import with_pop_factors
from ddp_ladder.gates.scale_point import ScalePoint, Status
from ddp_ladder.gates.step_split import STEP_PARTS, split_of_repeats
from ddp_ladder.gates.total_time import with_total_time
from ddp_ladder.gates.usage_findings import findings_of_repeats
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.fingerprint import batch_per_gpu_seen
from ddp_ladder.records.record import SAMPLES_PER_TIME, Record
from ddp_ladder.records.startup import startup_of
from ddp_ladder.records.whole_loop import WHOLE_LOOP
from ddp_ladder.settings.config_keys import GateThresholds
from ddp_ladder.settings.terms import Scale

Place = tuple[str, str, Scale]  # mode, variant and scale
MOST_EFFICIENCY = GateThresholds().max_efficiency  # above this, the baseline is suspect


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
    groups = with_one_statistic(groups_of(runs, records, may_differ, gates))
    own = {key: _own_figures(group) for key, group in groups.items()}
    return tuple(_point(group, Baselines.of(group, groups), groups, own) for group in groups.values())


def _point(group: Group, baselines: Baselines, groups: Groups, own: Mapping[Place, ScalePoint]) -> ScalePoint:
    """Return the point of a group. own: figures that need no baseline, of each group."""
    spec, baseline = group.first, baselines.launched
    point = own[_place(group)]
    if group.good:
        point = with_pop_factors(with_cost_per_million_samples(point), None)
    if group.failed:
        return replace(point, status="failed", note=failure_note(group))
    if not group.good:
        return replace(point, status="not run", note=why_not_run(group))
    if spec.is_plain:
        return replace(point, status="ok", note=joined(no_plain_baseline(group), notes_on(point, group)))
    point = with_other_baselines(_with_plain_ratio(point, group, baselines.plain), group, groups)
    point = with_total_time(point, groups)
    point = _with_differences(point, group, baseline)
    obstacle = obstacle_to_ratio(group, baseline)
    if obstacle or baseline is None:
        instead = instead_of_the_baseline(point, groups, MOST_EFFICIENCY)
        return replace(point, status="not comparable", note=joined(obstacle, instead, notes_on(point, group)))
    point = _with_ratios(point, group, baseline)
    point = with_pop_factors(point, own[_place(baseline)])
    status, excess = _judged(point, group, baseline)
    plain = no_plain_ratio(group, baselines.plain) if group is baseline else ""
    return replace(point, status=status, note=joined(excess, notes_on(point, group), plain))


def _place(group: Group) -> Place:
    return group.first.mode, group.first.variant, group.first.scale


def _own_figures(group: Group) -> ScalePoint:
    spec = group.first
    point = ScalePoint(
        variant=spec.variant,
        mode=spec.mode,
        stage=spec.stage,
        nodes=spec.nodes,
        gpus_per_node=spec.gpus_per_node,
        world_size=spec.gpus,
        batch_per_gpu=spec.batch_per_gpu,
        global_batch=spec.global_batch,
        repeats=len(group.good),
        jobs=len(set(group.jobs)),
        baseline=str(group.baseline),
    )
    return _with_figures(point, group) if group.good else point


def _with_figures(point: ScalePoint, group: Group) -> ScalePoint:
    """Return the point with the figures that need no baseline."""
    medians: dict[str, Any] = {
        column.key: median_of_known([column.of_run(run.record) for run in group.good])
        for column in columns("csv")
        if column.of_run
    }
    medians.update(_startup(group))
    rate, step = group.samples_per_s, group.step_time_s
    rate_low, rate_high = group.log_rate.interval(rate)
    step_low, step_high = group.log_step_time.interval(step)
    waits = [wait for run in group.good if (wait := run.timing.data_wait_fraction) is not None]
    batch = batch_per_gpu_seen(group.good[0].record)
    simulated = (run.record.world.simulated for run in group.good)
    split, facts = split_of_repeats(group) or (None, None)
    if split:
        medians.update({part: getattr(split, part) for part in STEP_PARTS})
    return replace(
        replace(point, **medians, step=facts),
        batch_per_gpu=batch,
        global_batch=batch * point.world_size,
        samples_per_s=rate,
        samples_per_s_low=rate_low,
        samples_per_s_high=rate_high,
        step_time_s=step,
        step_time_s_low=step_low,
        step_time_s_high=step_high,
        statistic=group.statistic,
        log_rate=group.log_rate,
        unsteady=unsteady(group),
        data_wait_fraction_max=max(waits, default=None),
        simulated=next((words for words in simulated if words), None),
        findings=findings_of_repeats([run.record for run in group.good]),
        unexplained=next(
            (remark.what for run in group.good for remark in run.record.remarks if remark.name == WHOLE_LOOP), ""
        ),
    )


def _startup(group: Group) -> dict[str, float | None]:
    """Return the start-up of the repeat with the median total, the lower of two: medians of parts do not add up."""
    known = sorted(
        (found for run in group.good if (found := startup_of(run.record.ranks))), key=lambda each: each.total_s
    )
    if not known:
        return {}
    parts = asdict(known[(len(known) - 1) // 2])
    return {"startup_s": parts.pop("total_s")} | {f"startup_{name}": value for name, value in parts.items()}


def _with_ratios(point: ScalePoint, group: Group, baseline: Group) -> ScalePoint:
    times = point.world_size / baseline.first.gpus
    speedup, speedup_low, speedup_high = group.speedup_over(baseline)
    efficiency, low, high = divided((speedup, speedup_low, speedup_high), times)
    log = None if group is baseline else group.log_rate.over(baseline.log_rate)
    return replace(
        point,
        speedup=speedup,
        speedup_low=speedup_low,
        speedup_high=speedup_high,
        efficiency=efficiency,
        efficiency_low=low,
        efficiency_high=high,
        log_efficiency=log and replace(log, mean=log.mean - math.log(times)),
        unsteady=point.unsteady or unsteady(baseline),
    )


def _with_plain_ratio(point: ScalePoint, group: Group, plain: Group | None) -> ScalePoint:
    if plain is None or no_plain_ratio(group, plain):
        return point
    if SAMPLES_PER_TIME in (group.statistic, plain.statistic):  # both sides must have the same one
        group, plain = (replace(side, statistic=SAMPLES_PER_TIME) for side in (group, plain))
    rate = group.samples_per_s / plain.samples_per_s
    ends = group.log_rate.over(plain.log_rate).interval(rate)
    value, low, high = divided((rate, *ends), point.world_size)
    return replace(point, efficiency_plain=value, efficiency_plain_low=low, efficiency_plain_high=high)


def _with_differences(point: ScalePoint, group: Group, baseline: Group | None) -> ScalePoint:
    """Return the point with the fields that forbid the ratio and the differences that the user allows."""
    own = baseline.all_differences if baseline else ()
    found = tuple(dict.fromkeys((*differences_to(group, baseline), *group.all_differences, *own)))
    forbidden = group.forbidden(found)
    return replace(
        point,
        differing=tuple(dict.fromkeys(item.field for item in forbidden)),
        allowed=in_words([item for item in found if item not in forbidden]),
    )


def _judged(point: ScalePoint, group: Group, baseline: Group) -> tuple[Status, str]:
    if point.efficiency is not None and point.efficiency > MOST_EFFICIENCY:
        return "check", excess_note(point, baseline)
    return ("incomplete" if len(group.good) < len(group.specs) else "ok"), ""
