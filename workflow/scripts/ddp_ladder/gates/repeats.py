"""Further repeats of a scale: whether its figures are known well enough, and which runs come next. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ddp_ladder.gates.groups import Group, Groups, groups_of, with_one_statistic
from ddp_ladder.gates.interval import half_width_percent
from ddp_ladder.gates.notes import obstacle_to_ratio
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob
from ddp_ladder.records.record import Record


@dataclass(frozen=True)
class Unknown:
    """A variant whose figure is not known well enough. percent: half its interval; None without one."""

    variant: str
    mode: str
    repeats: int
    percent: float | None

    @property
    def known(self) -> str:
        """Return ``known to 4.1 %``."""
        return "one repeat shows no scatter" if self.percent is None else f"known to {self.percent:.2g} %"


def not_known(
    plan: Plan, job: ScaleJob, records: Mapping[str, Record], left_out: Collection[str] = ()
) -> tuple[Unknown, ...]:
    """Return the variants whose efficiency at a scale is not known well enough.

    At the first scale, where the efficiency is 1 by definition, it is the throughput. The plain baseline, and what more
    repeats cannot help, are left out: failed runs, and scales that do not compare with the baseline.
    records: good runs of the scale and of the first one, by RunSpec.name. left_out: variants that are not to be run.
    """
    first = plan.job(plan.first_scale)
    specs = {run.name: run for one in (first, job) for run in (*one.runs, *one.more)}
    groups = with_one_statistic(groups_of(tuple(specs.values()), records, plan.may_differ, plan.gates))
    here = [group for (_, variant, scale), group in groups.items() if scale == job.scale and variant not in left_out]
    return tuple(found for group in here if (found := _unknown(job, group, groups)))


def next_repeat(
    plan: Plan, job: ScaleJob, records: Mapping[str, Record], left_out: Collection[str] = ()
) -> tuple[RunSpec, ...]:
    """Return the runs of the next repeat, of all variants that are not left out; empty if no more are wanted.

    Each job judges its own repeats: those of another one, made later, do not ask for more of them. The first share that
    is not complete is the next one's.
    """
    for share in range(1, job.jobs + 1):
        left = (run for run in job.more if run.name not in records and run.variant not in left_out)
        due = [run for run in left if job.share(run) == share]
        if due and (job.is_planned(due[0]) or not_known(plan, job, _of_share(job, share, records), left_out)):
            return tuple(run for run in due if run.repeat == due[0].repeat)
    return ()


def _of_share(job: ScaleJob, share: int, records: Mapping[str, Record]) -> Mapping[str, Record]:
    """Return the records of one share: of the first scale, those of the same share of its jobs."""
    return {name: record for name, record in records.items() if job.share(record.spec) == share}


def in_words(
    plan: Plan, job: ScaleJob, records: Mapping[str, Record], left_out: Collection[str] = (), share: int = 1
) -> str:
    """Return ``4 of at most 8 repeats, default weak known to 4.1 % (wanted: 3 %)``; of several jobs, of which."""
    own = _of_share(job, share, records)
    made = len({record.spec.repeat for record in own.values() if record.spec.scale == job.scale})
    most = f"at most {job.at_most}" if job.is_adaptive else f"{job.at_most}"
    of = f"job {share} of {job.jobs}: " if job.jobs > 1 else ""
    unknown = not_known(plan, job, own, left_out) if job.is_adaptive else ()
    if unknown:
        which = ", ".join(f"{one.variant} {one.mode}: {one.known}" for one in unknown)
        return f"{of}{made} of {most} repeats; {which} (wanted: {job.until_percent:g} %)"
    known = f", each known to {job.until_percent:g} %" if job.is_adaptive else ""
    return f"{of}{made} of {most} repeats{known}"


def _unknown(job: ScaleJob, group: Group, groups: Groups) -> Unknown | None:
    spec = group.first
    baseline = groups.get((spec.mode, spec.variant, group.baseline))
    if spec.is_plain or group.failed or not group.good or obstacle_to_ratio(group, baseline) or baseline is None:
        return None
    percent = half_width_percent(group.log_rate, None if group is baseline else baseline.log_rate)
    if percent is not None and percent <= job.until_percent:
        return None
    return Unknown(spec.variant, spec.mode, len(group.good), percent)
