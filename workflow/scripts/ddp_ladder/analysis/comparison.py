"""Comparison of the variants of one ladder with its default, in pairs of the same repeat. Pure.

A scale's job runs all variants of a repeat after each other, on the same nodes. Two runs of one repeat are a pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddp_ladder.analysis.compared import Compared, Comparison, panel
from ddp_ladder.analysis.ratio import paired
from ddp_ladder.analysis.unlike import unlike
from ddp_ladder.analysis.variant_changes import variant_changes
from ddp_ladder.common.formats import in_short
from ddp_ladder.gates.groups import Good, Group, Groups, groups_of
from ddp_ladder.gates.notes import failure_note, joined, why_not_run
from ddp_ladder.plan.plan import Plan
from ddp_ladder.records.record import SAMPLES_PER_TIME, Record
from ddp_ladder.records.statistic import median
from ddp_ladder.settings.terms import REFERENCE_VARIANT

NOT_RUN = "not run"
BY_THE_VARIANT = ("args_template",)  # named by what the variant changes


def compare_variants(plan: Plan, records: Mapping[str, Record]) -> Comparison:
    """Return every variant of a plan beside the default. records: by ``RunSpec.name``."""
    runs = [run for run in plan.runs if not run.is_plain]
    groups = with_one_statistic_per_mode(groups_of(runs, records, plan.may_differ, plan.gates))
    panels = []
    for mode, scale in dict.fromkeys((mode, scale) for mode, _, scale in groups):
        own = [group for (its_mode, _, its_scale), group in groups.items() if (its_mode, its_scale) == (mode, scale)]
        reference = next((group for group in own if group.first.variant == REFERENCE_VARIANT), None)
        panels.append(panel(mode, scale, tuple(_compared(group, reference) for group in own)))
    return Comparison(tuple(panels), REFERENCE_VARIANT, is_paired=True)


def with_one_statistic_per_mode(groups: Groups) -> Groups:
    """Give all variants of a mode one statistic, so that they have ratios: samples / time if any of them needs it."""
    needed = {mode for (mode, _, _), group in groups.items() if group.needs_samples_per_time}
    return {
        key: replace(group, statistic=SAMPLES_PER_TIME) if key[0] in needed else group for key, group in groups.items()
    }


def measured(group: Group) -> Compared:
    """Return a row with the figures of a group, and why some or all of its runs have none; without a ratio."""
    spec = group.first
    row = Compared(spec.variant, spec.mode, spec.scale, repeats=len(group.good))
    if group.failed:
        row = replace(row, notes=(failure_note(group),))
    if not group.good:
        failed = ", ".join(dict.fromkeys(run.failure.verdict for run in group.failed if run.failure))
        left_out = f"{NOT_RUN}: {why_not_run(group)}" if group.left_out else NOT_RUN
        return replace(row, obstacle=f"failed: {failed}" if group.failed else left_out)
    return replace(row, samples_per_s=group.samples_per_s, step_time_s=group.step_time_s)


def _compared(group: Group, reference: Group | None) -> Compared:
    row = measured(group)
    if group is reference:
        return replace(row, is_reference=not row.obstacle)
    if reference is None:
        return replace(row, obstacle=row.obstacle or f"the plan has no {REFERENCE_VARIANT} here to compare with")
    row = replace(row, changes=variant_changes(reference.first, group.first))
    if row.obstacle:
        return row
    if not reference.good:
        return replace(row, obstacle=f"{REFERENCE_VARIANT} {measured(reference).obstacle}")
    pairs = _pairs(group, reference)
    if not pairs:
        return replace(row, obstacle=f"no repeat of both this and {REFERENCE_VARIANT} succeeded")
    here, there = ([run.samples_per_s(group.statistic) for run in side] for side in zip(*pairs, strict=True))
    note = _apart(pairs)
    return replace(
        row,
        ratio=paired(here, there),
        reference_samples_per_s=median(there),
        unlike=unlike(pairs[0][1].record, pairs[0][0].record, BY_THE_VARIANT),
        alike_nodes=not note,
        notes=tuple(filter(None, (*row.notes, _few_pairs(len(pairs), group), note))),
    )


def _pairs(group: Group, reference: Group) -> list[tuple[Good, Good]]:
    others = {run.record.spec.repeat: run for run in reference.good}
    return [(run, others[repeat]) for run in group.good if (repeat := run.record.spec.repeat) in others]


def _few_pairs(count: int, group: Group) -> str:
    if count == 1:
        return "one pair of repeats shows no scatter: there is no interval"
    few = "two pairs of repeats make a wide interval" if count == 2 else ""
    part = f"{count} of {len(group.specs)} repeats are pairs" if count < len(group.specs) else ""
    return joined(part, few)


def _apart(pairs: Sequence[tuple[Good, Good]]) -> str:
    """Return the note on pairs whose runs were not in one job on the same nodes; empty if all were."""
    apart = [pair for pair in pairs if _where(pair[0]) != _where(pair[1])]
    if not apart:
        return ""
    here, there = ("; ".join(dict.fromkeys(_place(run) for run in side)) for side in zip(*apart, strict=True))
    repeats = ", ".join(f"r{run.record.spec.repeat}" for run, _ in apart)
    return (
        f"not in one job on the same nodes ({repeats}: {here}; {REFERENCE_VARIANT}: {there}): the ratio contains what "
        "these jobs and nodes differ in"
    )


def _where(run: Good) -> tuple[str | None, frozenset[str]]:
    job = run.record.job
    return (job.id if job else None), frozenset(run.record.world.hosts)


def _place(run: Good) -> str:
    job, hosts = _where(run)
    return f"job {job} on {in_short(sorted(hosts), 3)}"
