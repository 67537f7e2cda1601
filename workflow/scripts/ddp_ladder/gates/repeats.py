"""Further repeats of a scale: whether its figures are known well enough, and which runs come next. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ddp_ladder.gates.groups import Groups, RepeatGroup, groups_of
from ddp_ladder.gates.interval import half_width_percent
from ddp_ladder.gates.notes import obstacle_to_ratio
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob
from ddp_ladder.records.record import Record


def not_known(plan: Plan, job: ScaleJob, records: Mapping[str, Record], left_out: Collection[str] = ()) -> list[str]:
    """Return one text per variant and mode whose interval is too wide and touches a threshold.

    The interval is that of the efficiency; at the first scale, where that is 1 by definition, of the throughput. The
    plain baseline, and what more repeats cannot help, are left out: failed runs, and scales that do not compare with
    the baseline. records: good runs of the scale and of the first one, by RunSpec.name. left_out: variants that are
    not to be run.
    """
    jobs = (plan.job(plan.first_scale), job)
    specs = {run.name: run for known in jobs for run in (*known.runs, *known.more)}
    groups = groups_of([*specs.values()], records, plan.may_differ, plan.gates)
    judged = [group for (_, variant, scale), group in groups.items() if scale == job.scale and variant not in left_out]
    return [*filter(None, (_unknown(plan, job, group, groups) for group in judged))]


def next_repeat(
    plan: Plan, job: ScaleJob, records: Mapping[str, Record], left_out: Collection[str] = ()
) -> tuple[RunSpec, ...]:
    """Return the runs of the next repeat, of all variants that are not left out; empty if no more are wanted."""
    due = [run for run in job.more if run.name not in records and run.variant not in left_out]
    if not due or not not_known(plan, job, records, left_out):
        return ()
    return tuple(run for run in due if run.repeat == due[0].repeat)


def repeats_in_words(plan: Plan, job: ScaleJob, records: Mapping[str, Record], left_out: Collection[str] = ()) -> str:
    """Return ``4 of at most 8 repeats, default weak known to 4.1 % (wanted: 3 %)``."""
    made = len({record.spec.repeat for record in records.values() if record.spec.scale == job.scale})
    if unknown := not_known(plan, job, records, left_out):
        return f"{made} of at most {job.at_most} repeats; {', '.join(unknown)} (wanted: {job.until_percent:g} %)"
    return f"{made} of at most {job.at_most} repeats, each known to {job.until_percent:g} %, or clear of the gate"


def _unknown(plan: Plan, job: ScaleJob, group: RepeatGroup, groups: Groups) -> str:
    """Return ``default weak: known to 4.1 %``; empty if it is known well enough."""
    spec = group.first
    baseline = groups.get((spec.mode, spec.variant, group.baseline))
    if spec.is_plain or group.failed or not group.good or obstacle_to_ratio(group, baseline) or baseline is None:
        return ""
    is_first = group is baseline
    percent = half_width_percent(group.log_rate if is_first else group.log_rate.over(baseline.log_rate))
    if percent is None:
        return f"{spec.variant} {spec.mode}: one repeat shows no scatter"
    if percent <= job.until_percent or (not is_first and _clears(plan, group, baseline)):
        return ""
    how = f"known to {percent:.2g} %" if percent < 100 else "its repeats differ by too much"
    return f"{spec.variant} {spec.mode}: {how}"


def _clears(plan: Plan, group: RepeatGroup, baseline: RepeatGroup) -> bool:
    """Return True if the gate of the scale has minima, and the intervals lie on one side of them."""
    gate, rate = plan.gates[group.first.stage], group.samples_per_s
    efficiency = rate / baseline.samples_per_s / (group.first.gpus / baseline.first.gpus)
    judged = (
        (gate.min_efficiency, efficiency, half_width_percent(group.log_rate.over(baseline.log_rate))),
        (gate.min_samples_per_s, rate, half_width_percent(group.log_rate)),
    )
    clear = [
        percent is not None and max(least / value, value / least) > 1 + percent / 100
        for least, value, percent in judged
        if least is not None
    ]
    return bool(clear) and all(clear)
