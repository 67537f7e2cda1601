"""Notes beside a point: why it has no ratio, what failed, what a reader should know. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddp_ladder.common.formats import significant
from ddp_ladder.gates.groups import RepeatGroup
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.measuring.fingerprint import Difference, all_differences
from ddp_ladder.measuring.statistic import median
from ddp_ladder.records.record import MEDIAN_OF_BLOCKS, SAMPLES_PER_TIME, SOURCE_IN_WORDS, STRONGEST

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
    notes += dict.fromkeys(remark.measured for run in group.good for remark in run.record.remarks)
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
    if is_guess or any(remark.kind == "doubtful count" for run in group.good for remark in run.record.remarks):
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


def joined(*parts: str) -> str:
    """Return the parts that are not empty, as one text."""
    return "; ".join(filter(None, parts))
