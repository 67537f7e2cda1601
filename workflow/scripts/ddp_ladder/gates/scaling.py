"""Scaling: from records to one point per variant x mode x scale, its ratios, its notes, and further repeats. Pure.

All points that are compared with each other have the same statistic.

Efficiency by total time is p_b T_b / (p_N T_N), as computing centres define it. T is the time of a whole run, with its
start-up, validation and end. Runs of two scales may train different numbers of samples: T is then that of one sample.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar, cast

from ddp_ladder.common.findings import remark
from ddp_ladder.common.formats import one_of, significant
from ddp_ladder.gates.figures import columns
from ddp_ladder.gates.interval import Estimate, LogMean, Variance, half_width_percent, median_of_known
from ddp_ladder.gates.points import (
    WITNESSED,
    Figures,
    Groups,
    Key,
    RepeatGroup,
    ScalePoint,
    Status,
    cores_of_a_rank,
    findings_of_repeats,
    groups_of,
    job_of,
    split_of_repeats,
)
from ddp_ladder.measuring.fingerprint import (
    Difference,
    all_differences,
    batch_per_gpu_seen,
    global_batch_seen,
    gpu_models,
    parameters_seen,
)
from ddp_ladder.measuring.statistic import median
from ddp_ladder.measuring.timing import startup_of
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob
from ddp_ladder.records.raw_models import Witnessed
from ddp_ladder.records.record import MEDIAN_OF_BLOCKS, SAMPLES_PER_TIME, SOURCE_IN_WORDS, STRONGEST, Record, weakest
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
    point = point_of(group, baseline)
    if group.failed:
        return replace(point, status="failed", note=failure_note(group))
    if not group.good:
        return replace(point, note=why_not_run(group))
    if spec.is_plain:
        note = _joined(no_plain_baseline(group), notes_on(point, group))
        return replace(point, status="ok", note=note)
    point = point.having({"efficiency_plain": _over_plain(group, plain)}, **_differences(group, baseline))
    obstacle = obstacle_to_ratio(group, baseline)
    if obstacle or baseline is None:
        note = _joined(obstacle, notes_on(point, group))
        return replace(point, status="not comparable", note=note)
    point, excess = point.having(_ratios(group, baseline)), ""
    status: Status = "incomplete" if len(group.good) < len(group.specs) else "ok"
    efficiency = point["efficiency"]
    if efficiency is not None and efficiency > MOST_EFFICIENCY:  # the gate says what to do
        status = "check"
        excess = f"{100 * efficiency:.0f} %: more than the ideal; the baseline is slower than it should be"
    why = no_plain_ratio(group, plain) if group is baseline else ""
    return replace(point, status=status, note=_joined(excess, notes_on(point, group), why))


def point_of(group: RepeatGroup, baseline: RepeatGroup | None = None) -> ScalePoint:
    """Return the point of a group without ratios; batches as they were seen replace those of the plan."""
    names = ("variant", "mode", "stage", "nodes", "gpus_per_node", "batch_per_gpu", "global_batch")
    point = ScalePoint(
        **{name: getattr(group.first, name) for name in names},
        world_size=group.first.gpus,
        repeats=len(group.good),
        jobs=len(set(group.jobs)),
        baseline=str(group.baseline),
    )
    if not group.good:
        return point
    alone = [run.record for run in baseline.good] if baseline and baseline is not group else []
    records = [run.record for run in group.good]
    rate = rate_of(group)
    log = replace(group.log_rate, steps=group.log_rate.steps + _of_shares(records[0].witness))
    rate = replace(rate, low=log.interval(rate.value)[0], high=log.interval(rate.value)[1])
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
    remarks = [each for run in group.good for each in run.record.remarks if each.kind in DOUBTS]
    doubts = [each.replace(place=str(group.first.scale)) for each in remarks[:1]]
    witness = group.good[0].record.witness
    is_witnessed = witness is not None and witness.is_counted and not doubts
    if why := unsteady(group):
        doubts.insert(0, remark("unsteady", "the step times were not steady", why))
    source = WITNESSED if is_witnessed else weakest(run.throughput.source for run in group.good)
    return Estimate.of(group.samples_per_s, group.log_rate, source, tuple(doubts))


def _of_shares(witness: Witnessed | None) -> Variance:
    """Return the variance of the logarithm of a count that a witness has corrected: its shares differ between passes.

    It is no part of the figure's own log: a ratio of two figures has the same correction on both sides.
    """
    found = Variance()
    if witness is None or witness.status != "differs":
        return found
    trained = sum(place.samples_trained for place in witness.places)
    for place in (place for place in witness.places if place.samples_trained and len(place.shares) > 1):
        error = statistics.stdev(place.shares) / statistics.fmean(place.shares) / math.sqrt(len(place.shares))
        found += Variance((error * place.samples_trained / trained) ** 2, len(place.shares) - 1)
    return found


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
    if plain is None or no_plain_ratio(group, plain):
        return None
    if SAMPLES_PER_TIME in (group.statistic, plain.statistic):  # both sides must have the same one
        group, plain = (replace(side, statistic=SAMPLES_PER_TIME) for side in (group, plain))
    return rate_of(group).over(rate_of(plain)) / group.first.gpus


def _differences(group: RepeatGroup, baseline: RepeatGroup | None) -> dict[str, Any]:
    """Return the fields that forbid the ratio and the differences that the user allows."""
    own = baseline.all_differences if baseline else ()
    differences = tuple(dict.fromkeys((*differences_to(group, baseline), *group.all_differences, *own)))
    forbidden = group.forbidden(differences)
    return {
        "differing": tuple(dict.fromkeys(item.field for item in forbidden)),
        "allowed": in_words([item for item in differences if item not in forbidden]),
    }


# --- Notes beside a point: why it has no ratio, what failed, what a reader should know.


LEAST_EXPLAINED = 0.5  # of the time of slow blocks beyond that of the others
NOTABLE_GAP = 0.05  # between samples / time and the median of blocks, or between the first third of a run and the last


def obstacle_to_ratio(group: RepeatGroup, baseline: RepeatGroup | None) -> str:
    """Return why no ratio to the baseline is given; empty if one may be given."""
    spec = group.first
    if group.differences:
        return f"the repeats differ in {in_words(group.differences)}"
    if group is baseline:
        return ""
    what = f"the {group.baseline} baseline of {spec.variant}, {spec.mode},"
    if baseline is None:
        return f"{what} is not in the plan"
    if baseline.failed:
        return f"{what} failed"
    if not baseline.good:
        return f"{what} has not been run"
    if baseline.differences:
        return f"{what} has repeats that differ in {in_words(baseline.differences)}"
    forbidden = group.forbidden(differences_to(group, baseline))
    return f"not like for like: {in_words(forbidden)}" if forbidden else ""


def differences_to(group: RepeatGroup, baseline: RepeatGroup | None) -> tuple[Difference, ...]:
    """Return what differs between a group and its baseline; empty if there is no baseline."""
    if baseline is None or group is baseline or not baseline.good:
        return ()
    return all_differences(baseline.good[0].record, group.good[0].record)


def in_words(differences: Sequence[Difference]) -> str:
    """Return the differences as one text."""
    return "; ".join(item.in_words for item in differences)


def no_plain_ratio(group: RepeatGroup, plain: RepeatGroup | None) -> str:
    """Return why there is no efficiency against the plain script; empty if there is one or no plain run is planned."""
    if plain is None:
        return ""
    why = no_plain_baseline(plain)
    if not why and (forbidden := group.forbidden(differences_to(group, plain))):
        why = f"not like for like: {in_words(forbidden)}"
    return f"no efficiency against the plain script: {why}" if why else ""


def no_plain_baseline(plain: RepeatGroup) -> str:
    """Return why these runs cannot be the plain baseline; empty if they can."""
    if plain.failed:
        failure = plain.failed[0].failure
        return f"the script failed without a launcher ({failure.why if failure else 'no reason recorded'})"
    if not plain.good:
        return "it has not been run"
    if plain.differences:
        return f"its repeats differ in {in_words(plain.differences)}"
    if any(run.record.world.backend is not None for run in plain.good):
        return "it creates a process group even without a launcher"
    return ""


def notes_on(point: ScalePoint, group: RepeatGroup) -> str:
    """Return what a reader should know beside the status."""
    spec, notes = group.first, [] if point.simulated is None else [point.simulated]
    notes += [f"allowed to differ: {point.allowed}"] if point.allowed else []
    sources = {run.throughput.source for run in group.good} - {STRONGEST}
    notes += [f"weaker evidence: {SOURCE_IN_WORDS[source]}" for source in sorted(sources)]
    unseen = (run.record.witness for run in group.good if run.record.witness and not run.record.witness.is_seen)
    notes += dict.fromkeys(f"its samples are not witnessed: {witness.why}" for witness in unseen)
    notes += dict.fromkeys(each.measured for run in group.good for each in run.record.remarks)
    if point.batch_per_gpu != spec.batch_per_gpu:
        notes.append(_other_batch(point, group))
    notes += _unsteady(point, group)
    if len(group.good) < len(group.specs):
        notes.append(f"{len(group.good)} of {len(group.specs)} repeats have been run")
    if point.rate is None or point.rate.low is None:
        few = "one repeat" if len(group.good) == 1 else "the repeats differ by too much"
        notes.append(f"no interval of samples/s: {few}, and more of them give one")
    return "; ".join(notes)


def _other_batch(point: ScalePoint, group: RepeatGroup) -> str:
    """Return how the batch of a step differs from the plan's. A number in doubt is not advised as the plan's."""
    planned = f"the plan says {group.first.batch_per_gpu}"
    if varying := [size for run in group.good for size in run.record.fingerprint.batch_varies or ()]:
        return f"the batches vary in size: a step has {min(varying)} to {max(varying)} samples per process, {planned}"
    text = f"a step of the script has {point.batch_per_gpu} samples per GPU, {planned}"
    is_passed = f"{text}: is {{batch_per_gpu}} in workload.args?"
    is_guess = any(run.throughput.source == "guessed" for run in group.good)
    if is_guess or any(each.kind == "doubtful count" for run in group.good for each in run.record.remarks):
        doubt = "a guess" if is_guess else "in doubt"
        return f"{text}; the {point.batch_per_gpu} is {doubt}: set workload.samples_per_step in config.yaml"
    if point.batch_per_gpu % group.first.batch_per_gpu:
        return is_passed
    return (
        f"{is_passed} If gradients are accumulated over K batches, set "
        f'workload.batch_per_gpu: {point.batch_per_gpu} and pass "{{batch_per_gpu}} // K"'
    )


def _unsteady(point: ScalePoint, group: RepeatGroup) -> list[str]:
    """Return the notes on slow steps, drift and unsteady step times, which a median alone would hide."""
    notes = []
    middle, total = (replace(group, statistic=s).samples_per_s for s in (MEDIAN_OF_BLOCKS, SAMPLES_PER_TIME))
    gap = f"{100 * abs(total / middle - 1):.1f} % {'below' if total < middle else 'above'} the median of blocks"
    if group.statistic == SAMPLES_PER_TIME:
        why = f"{gap}: slow steps recur" if group.needs_samples_per_time else "as at the scales where slow steps recur"
        notes.append(f"the figures are samples / time, {why}")
    elif abs(total / middle - 1) > NOTABLE_GAP:
        notes.append(f"samples / time is {significant(total)} samples/s, {gap}: some blocks are far from the others")
    drift = point["drift_fraction"] or 0.0
    if abs(drift) > NOTABLE_GAP:
        how = "slower" if drift > 0 else "faster"
        notes.append(f"the last third of the steps was {100 * abs(drift):.0f} % {how} than the first")
    notes += filter(None, [unsteady(group)])
    return [*notes, *filter(None, [_compiled_again(group) if notes else ""])]


def _compiled_again(group: RepeatGroup) -> str:
    """Return that torch.compile may be what slow blocks of a repeat have in common; empty if it is not.

    It is if what it took after the first step is at least half of what these blocks took beyond the median one.
    """
    for run in group.good:
        times = run.step_times
        excess_s = float((times.over - median(times.values) * times.under).clip(min=0).sum())
        later_s = max((rank.startup_s.get("compile_later") or 0.0 for rank in run.record.ranks), default=0.0)
        if later_s > LEAST_EXPLAINED * excess_s > 0:
            return (
                f"torch.compile took {significant(later_s)} s after the first step: it compiled again "
                "(TORCH_LOGS=recompiles says why; often the last batch of a pass is smaller: drop_last=True, or "
                "torch.compile(..., dynamic=True))"
            )
    return ""


def unsteady(group: RepeatGroup) -> str:
    """Return that step times were not steady after the warm-up, with what to set; empty if they were."""
    timings = [run.timing for run in group.good if run.timing.warmup_stable is False]
    if not timings:
        return ""
    longest = max(timings, key=lambda timing: timing.measured_steps)
    needed = max(2 * (longest.warmup_steps + longest.measured_steps), group.first.warmup_steps + group.first.min_steps)
    which = f"{len(timings)} of {len(group.good)} repeats of {group.first.scale}"
    return (
        f"the step times of {which} were not steady after the warm-up of {longest.warmup_steps} steps: let "
        f"them make {needed} steps (measure.max_steps or max_seconds, if they are set)"
    )


def failure_note(group: RepeatGroup) -> str:
    """Return how many repeats failed, and why."""
    count = f"{len(group.failed)} of {len(group.specs)} repeats failed"
    reasons = dict.fromkeys(run.failure.verdict for run in group.failed if run.failure)
    figures = "; the figures are those of the good ones" if group.good else ""
    return f"{count}: {', '.join(reasons) or 'no reason recorded'}{figures}"


def why_not_run(group: RepeatGroup) -> str:
    """Return why runs were left out on purpose; empty if none was."""
    return "; ".join(dict.fromkeys(run.failure.why for run in group.left_out if run.failure))


def _joined(*parts: str) -> str:
    """Return the parts that are not empty, as one text."""
    return "; ".join(filter(None, parts))


# --- Further repeats: whether the figures of a scale are known well enough, and which runs come next.


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
