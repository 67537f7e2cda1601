"""The profiled steps of a scale: means over its repeats for rank 0 and for the slowest rank. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ddp_ladder.common.model import IN_A_MODEL
from ddp_ladder.records.profile_models import ProfileTable, RankProfile
from ddp_ladder.records.record import Record

PARTS = ("kernels_s", "communication_s", "copies_s", "gaps_s", "python_s")


@dataclass(frozen=True)
class ProfiledRank:
    """The mean step of a rank under the profiler, in seconds; its parts add up to it.

    who: ``rank 0`` or ``slowest rank (rank 3)``. steps: of all repeats. traces: paths below the results. longest: names
    of the operations that take the longest, with their seconds in a step, of the first repeat. communicating: those of
    them that are communication.
    """

    __pydantic_config__: ClassVar = IN_A_MODEL
    who: str
    steps: int
    step_s: float
    kernels_s: float
    communication_s: float
    copies_s: float
    gaps_s: float
    python_s: float
    communication_total_s: float
    on_cuda: bool
    traces: tuple[str, ...] = ()
    longest: tuple[tuple[str, float], ...] = ()
    communicating: tuple[str, ...] = ()


def profiled_ranks(records: Sequence[Record]) -> tuple[ProfiledRank, ...]:
    """Return rank 0 and the slowest rank, as far as runs were profiled; one entry if rank 0 is always the slowest."""
    known = [(record, each) for record in records if record.profile for each in record.profile.ranks]
    first = [(record, each) for record, each in known if each.rank == record.ranks[0].rank]
    slowest = [(record, each) for record, each in known if each.slowest]
    several = [each for each in slowest if each not in first]
    found = []
    if first:
        alone = len(first[0][0].ranks) == 1
        who = f"rank {first[0][1].rank}" + (", the slowest" if not several and not alone else "")
        found.append(_mean(who, first))
    if several:
        numbers = ", ".join(str(rank) for rank in sorted({each.rank for _, each in slowest}))
        found.append(_mean(f"slowest rank ({numbers})", slowest))
    return tuple(found)


def _mean(who: str, runs: Sequence[tuple[Record, RankProfile]]) -> ProfiledRank:
    tables = [each.table for _, each in runs]
    steps = sum(len(table.steps_s) for table in tables)
    parts = {part: sum(getattr(table.parts_s, part) for table in tables) / steps for part in PARTS}
    return ProfiledRank(
        who=who,
        steps=steps,
        step_s=sum(sum(table.steps_s) for table in tables) / steps,
        **parts,
        communication_total_s=sum(table.communication_total_s for table in tables) / steps,
        on_cuda=any(table.on_cuda for table in tables),
        traces=tuple(f"runs/{record.spec.name}/ranks/{each.table.trace.file}" for record, each in runs),
        longest=_longest(tables[0]),
        communicating=tuple(each.name for each in tables[0].longest if each.communication),
    )


def _longest(table: ProfileTable) -> tuple[tuple[str, float], ...]:
    return tuple((each.name, each.time_s / len(table.steps_s)) for each in table.longest)
