"""Comparison of the results in several folders: before and after an upgrade, or two sites. Pure.

Their runs were made in other jobs, so there are no pairs. Each variant, mode and scale that the first folder has too is
compared with its runs there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ddp_ladder.analysis.compared import Compared, Comparison, panel
from ddp_ladder.analysis.comparison import measured, with_one_statistic_per_mode
from ddp_ladder.analysis.ratio import unpaired
from ddp_ladder.analysis.unlike import Unlike, unlike
from ddp_ladder.common.formats import in_short
from ddp_ladder.gates.groups import Group, Groups, groups_of
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.records.fingerprint import distinct_words
from ddp_ladder.records.record import SAMPLES_PER_TIME, Record
from ddp_ladder.settings.terms import Scale

Key = tuple[str, str, Scale]  # mode, variant, scale

SETTINGS = (
    "launcher", "backend", "interface", "env_template", "python", "modules", "setup", "container", "cpus_per_node",
    "max_steps", "max_seconds",
)  # fmt: skip
"""Fields of a spec, beside those of the fingerprint, that may explain another speed."""


@dataclass(frozen=True)
class Folder:
    """A folder of results. name: as the user wrote it."""

    name: str
    plan: Plan
    records: Mapping[str, Record]
    warnings: tuple[str, ...] = ()


def compare_results(folders: Sequence[Folder]) -> Comparison:
    """Return every folder but the first beside the first."""
    groups = _groups(folders)
    first, others = groups[0], dict(zip((folder.name for folder in folders[1:]), groups[1:], strict=True))
    several = len(others) > 1
    panels = []
    for mode, scale in dict.fromkeys((mode, scale) for each in others.values() for mode, _, scale in each):
        rows = [
            _compared(group, first[key], name if several else "")
            for key in first
            if (key[0], key[2]) == (mode, scale)
            for name, its_groups in others.items()
            if (group := its_groups.get(key))
        ]
        if rows:
            panels.append(panel(mode, scale, tuple(rows)))
    missing = [line for name, own in others.items() for line in _missing(folders[0].name, first, name, own)]
    warnings = [f"{folder.name}: {warning}" for folder in folders for warning in folder.warnings]
    return Comparison(tuple(panels), folders[0].name, is_paired=False, missing=tuple(missing), warnings=tuple(warnings))


def _groups(folders: Sequence[Folder]) -> list[Groups]:
    """Return each folder's groups, all with the same statistic in a mode."""
    found = []
    for folder in folders:
        runs = [run for run in folder.plan.runs if not run.is_plain]
        found.append(
            with_one_statistic_per_mode(groups_of(runs, folder.records, folder.plan.may_differ, folder.plan.gates))
        )
    needed = {key[0] for each in found for key, group in each.items() if group.statistic == SAMPLES_PER_TIME}
    return [
        {key: replace(group, statistic=SAMPLES_PER_TIME) if key[0] in needed else group for key, group in each.items()}
        for each in found
    ]


def _compared(group: Group, reference: Group, folder: str) -> Compared:
    row = replace(measured(group), folder=folder)
    before = measured(reference)
    if row.obstacle or before.obstacle:
        return replace(row, obstacle=row.obstacle or f"in the first folder: {before.obstacle}", notes=row.notes)
    repeats = min(len(group.good), len(reference.good))
    notes = [*row.notes, *(f"in the first folder: {note}" for note in before.notes)]
    if repeats <= 2:
        notes.append(
            "one repeat on one side shows no scatter: there is no interval"
            if repeats == 1
            else "two repeats on one side make a wide interval"
        )
    return replace(
        row,
        repeats=repeats,
        reference_samples_per_s=before.samples_per_s,
        ratio=unpaired(group.log_rate, reference.log_rate, repeats),
        unlike=_unlike(reference.good[0].record, group.good[0].record),
        notes=tuple(notes),
    )


def _unlike(reference: Record, here: Record) -> tuple[Unlike, ...]:
    return (*unlike(reference, here), *_other_settings(reference.spec, here.spec), *_other_nodes(reference, here))


def _other_settings(reference: RunSpec, here: RunSpec) -> tuple[Unlike, ...]:
    values = [(name, getattr(reference, name), getattr(here, name)) for name in SETTINGS]
    return tuple(Unlike(name, *distinct_words(name, before, now)) for name, before, now in values if before != now)


def _other_nodes(reference: Record, here: Record) -> tuple[Unlike, ...]:
    before, now = (sorted(set(record.world.hosts)) for record in (reference, here))
    return () if before == now else (Unlike("nodes", in_short(before, 3), in_short(now, 3)),)


def _missing(first_name: str, first: Groups, name: str, own: Groups) -> list[str]:
    """Return lines on what only one of two folders has."""
    return [
        f"only in {where}: {in_short([_words(key) for key in keys], 8)}"
        for where, keys in (
            (first_name, [key for key in first if key not in own]),
            (name, [key for key in own if key not in first]),
        )
        if keys
    ]


def _words(key: Key) -> str:
    mode, variant, scale = key
    return f"{variant} {mode} {scale}"
