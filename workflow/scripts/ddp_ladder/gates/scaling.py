"""Scaling: from records to one point per variant x mode x scale, with its ratios to the baselines. Pure: no files.

All points that are compared with each other have the same statistic.

POP's factors (Performance Optimisation and Productivity) are defined for a step of DDP: a rank's useful time is its own
work in a step, the step without its wait for the exchange of gradients. The wait for data so counts as computation.

Efficiency by total time is p_b T_b / (p_N T_N), as computing centres define it. T is the time of a whole run, with its
start-up, validation and end. Runs of two scales may train different numbers of samples: T is then that of one sample.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

from ddp_ladder.common.formats import factor, interval, tenths_of_percent
from ddp_ladder.gates.figures import columns
from ddp_ladder.gates.groups import (
    Group,
    Groups,
    groups_of,
    job_of,
    split_of_repeats,
    with_one_statistic,
)
from ddp_ladder.gates.interval import Estimate, LogMean, divided, median_of_known
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
from ddp_ladder.gates.points import ScalePoint, Status, findings_of_repeats
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.fingerprint import batch_per_gpu_seen
from ddp_ladder.records.record import SAMPLES_PER_TIME, Record
from ddp_ladder.records.statistic import median
from ddp_ladder.records.timing import WHOLE_LOOP, startup_of
from ddp_ladder.settings.keys import GateThresholds
from ddp_ladder.settings.terms import PLAIN_VARIANT, Scale

USUAL_MARK = 0.8  # POP: below, a factor deserves attention


def with_pop_factors(point: ScalePoint, baseline: ScalePoint | None) -> ScalePoint:
    """Return the point with the factors; those that relate to the baseline only if there is an efficiency.

    baseline: with figures of its own; it may be the point itself.
    """
    own, step_s = _own_work(point), point.step_time_s
    if own is None or not step_s:
        return point
    mean_s, max_s = own
    point = replace(
        point,
        load_balance=mean_s / max_s,
        communication_efficiency=max_s / step_s,
        parallel_efficiency=mean_s / step_s,
    )
    first = _own_work(baseline) if baseline else None
    if baseline is None or first is None or point.efficiency is None:
        return point
    scaling = _own_work_per_sample(baseline, first[0]) / _own_work_per_sample(point, mean_s)
    return replace(point, computation_scaling=scaling, global_efficiency=scaling * mean_s / step_s)


def _own_work(point: ScalePoint) -> tuple[float, float] | None:
    """Return mean and maximum over the ranks, in seconds per step; None if they are not known."""
    if point.step is None or not point.step.own_mean_s or not point.step.own_max_s:
        return None
    return point.step.own_mean_s, point.step.own_max_s


def _own_work_per_sample(point: ScalePoint, mean_s: float) -> float:
    """Return the seconds of all ranks: by the samples that a step really had, as its last batch may be a short one."""
    assert point.samples_per_s
    assert point.step_time_s
    return mean_s * point.world_size / (point.samples_per_s * point.step_time_s)


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
    return _with(point, efficiency_total_time=(1.0, 1.0, 1.0) if point.smallest_baseline == str(point.scale) else found)


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


IN_SHORT = {
    **dict.fromkeys(("parameter_dtype", "autocast_dtype", "product_dtypes", "float32_products"), "precision"),
    **dict.fromkeys(("script", "script_sha256", "sources"), "script"),
    **dict.fromkeys(("args_template", "configuration"), "arguments"),
    **dict.fromkeys(("torch", "cuda", "nccl", "cudnn", "libraries", "driver", "python"), "versions"),
    **dict.fromkeys(("threads", "threads_per_rank"), "threads"),
    "num_workers": "workers",
    "gpu": "GPU model",
    "cpu_model": "CPU model",
}
"""Fields of the fingerprint in a word for a table; another one is named as it is."""


def with_other_baselines(point: ScalePoint, group: Group, groups: Groups) -> ScalePoint:
    """Return the point with its ratios to one node and to the smallest scale that it compares with.

    The group has good runs and no failed ones.
    """
    series = [each for (mode, variant, _), each in groups.items() if (mode, variant) == (point.mode, point.variant)]
    return _against_smallest(_against_node(point, group, series), group, series)


def _against_node(point: ScalePoint, group: Group, series: Sequence[Group]) -> ScalePoint:
    scale = Scale(1, max(each.first.gpus_per_node for each in series))
    if group.first.gpus < scale.world_size:
        return point
    node = next((each for each in series if each.first.scale == scale), None)
    if node is None or not _is_measured(node):
        state = "is not in the plan" if node is None else "failed" if node.failed else "has not been run"
        return replace(point, node_obstacle=f"{scale} {state}")
    if differing := _differing(group, node):
        return replace(point, node_obstacle=not_comparable(differing))
    speedup, efficiency = _ratios(group, node)
    return _with(replace(point, node_baseline=str(scale)), speedup_node=speedup, efficiency_node=efficiency)


def _against_smallest(point: ScalePoint, group: Group, series: Sequence[Group]) -> ScalePoint:
    """Return the point with its ratio to the smallest measured scale of the same program; that may be its own."""
    obstacle = ""
    measured = [each for each in series if _is_measured(each)]
    for baseline in sorted(measured, key=lambda each: (each.first.gpus, each.first.nodes)):
        if baseline is group:
            break
        differing = _differing(group, baseline) if baseline.first.gpus < group.first.gpus else ()
        if baseline.first.gpus < group.first.gpus and not differing:
            break
        obstacle = obstacle or (f"{baseline.first.scale} {not_comparable(differing)}" if differing else "")
    else:
        return point
    speedup, efficiency = _ratios(group, baseline)
    times = group.first.gpus / baseline.first.gpus
    point = replace(point, smallest_baseline=str(baseline.first.scale), smallest_obstacle=obstacle)
    if times > 1:
        value, low, high = (each and serial_fraction(each, times) for each in (speedup[0], speedup[2], speedup[1]))
        point = replace(point, serial_fraction=value, serial_fraction_low=low, serial_fraction_high=high)
    return _with(point, speedup_smallest=speedup, efficiency_smallest=efficiency)


def serial_fraction(speedup: float, times: float) -> float:
    """Return Karp and Flatt's experimentally determined serial fraction. times: as many GPUs, above 1."""
    return (1 / speedup - 1 / times) / (1 - 1 / times)


def _with(point: ScalePoint, **estimates: Estimate) -> ScalePoint:
    """Return the point with figures and the ends of their intervals."""
    ends = ("", "_low", "_high")
    values: dict[str, Any] = {
        key + end: value for key, found in estimates.items() for end, value in zip(ends, found, strict=True)
    }
    return replace(point, **values)


def _is_measured(group: Group) -> bool:
    return bool(group.good) and not group.failed


def _differing(group: Group, baseline: Group) -> tuple[str, ...]:
    """Return the fields that forbid the ratio: between both groups, or between the repeats of one."""
    between = differences_to(group, baseline)
    found = group.forbidden((*between, *group.all_differences, *baseline.all_differences))
    return tuple(item.field for item in found)


def _ratios(group: Group, baseline: Group) -> tuple[Estimate, Estimate]:
    """Return speed-up and efficiency, each with the ends of its interval."""
    speedup = group.speedup_over(baseline)
    return speedup, divided(speedup, group.first.gpus / baseline.first.gpus)


def not_comparable(fields: Sequence[str]) -> str:
    """Return ``not comparable: precision, workers``."""
    return f"not comparable: {', '.join(dict.fromkeys(IN_SHORT.get(field, field) for field in fields))}"


def instead_of_the_baseline(point: ScalePoint, groups: Groups, most: float) -> str:
    """Return the ratio to the smallest scale in words, for a point without one to the first; empty if there is none.

    most: an efficiency above it is explained.
    """
    words = _against_smallest_in_words(point)
    if not words or (point.efficiency_smallest or 0) <= most:
        return words
    baseline = groups[point.mode, point.variant, Scale.parse(point.smallest_baseline)]
    return joined(words, excess_note(replace(point, efficiency=point.efficiency_smallest), baseline))


def _against_smallest_in_words(point: ScalePoint) -> str:
    low, high = point.efficiency_smallest_low, point.efficiency_smallest_high
    if point.smallest_baseline in ("", str(point.scale)):
        return ""
    words = f"speed-up {factor(point.speedup_smallest)}, efficiency {tenths_of_percent(point.efficiency_smallest)}"
    ends = f" {interval(tenths_of_percent(low), tenths_of_percent(high))}" if (low or 0) < (high or 0) else ""
    return f"against {point.smallest_baseline}, the smallest scale that compares: {words}{ends}"


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
    return tuple(_point(group, groups, own) for group in groups.values())


def _point(group: Group, groups: Groups, own: Mapping[Place, ScalePoint]) -> ScalePoint:
    """Return the point of a group. own: figures that need no baseline, of each group."""
    spec = group.first
    baseline = groups.get((spec.mode, spec.variant, group.baseline))
    plain = groups.get((spec.mode, PLAIN_VARIANT, group.baseline))
    point = own[_place(group)]
    if group.good:
        point = with_pop_factors(point, None)
    if group.failed:
        return replace(point, status="failed", note=failure_note(group))
    if not group.good:
        return replace(point, status="not run", note=why_not_run(group))
    if spec.is_plain:
        return replace(point, status="ok", note=joined(no_plain_baseline(group), notes_on(point, group)))
    point = with_other_baselines(_with_plain_ratio(point, group, plain), group, groups)
    point = with_total_time(point, groups)
    point = _with_differences(point, group, baseline)
    obstacle = obstacle_to_ratio(group, baseline)
    if obstacle or baseline is None:
        instead = instead_of_the_baseline(point, groups, MOST_EFFICIENCY)
        return replace(point, status="not comparable", note=joined(obstacle, instead, notes_on(point, group)))
    point = _with_ratios(point, group, baseline)
    point = with_pop_factors(point, own[_place(baseline)])
    status, excess = _judged(point, group, baseline)
    why = no_plain_ratio(group, plain) if group is baseline else ""
    return replace(point, status=status, note=joined(excess, notes_on(point, group), why))


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
    rates, steps = (rate, *group.log_rate.interval(rate)), (step, *group.log_step_time.interval(step))
    waits = [wait for run in group.good if (wait := run.timing.data_wait_fraction) is not None]
    batch = batch_per_gpu_seen(group.good[0].record)
    simulated = (run.record.world.simulated for run in group.good)
    parts, facts = split_of_repeats(group) or ({}, None)
    return replace(
        _with(replace(point, **{**medians, **parts}, step=facts), samples_per_s=rates, step_time_s=steps),
        batch_per_gpu=batch,
        global_batch=batch * point.world_size,
        gpu_hours_per_million_samples=point.world_size * (1e6 / rate / 3600),
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
    speedup, efficiency = _ratios(group, baseline)
    log = None if group is baseline else group.log_rate.over(baseline.log_rate)
    return replace(
        _with(point, speedup=speedup, efficiency=efficiency),
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
    return _with(point, efficiency_plain=divided((rate, *ends), point.world_size))


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
