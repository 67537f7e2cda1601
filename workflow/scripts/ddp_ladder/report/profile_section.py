"""The report's section on profiled steps: a rank's mean step by what it spent its time on, and its traces. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddp_ladder.gates.profile_evidence import longest_shown, measured_shown, parts_shown, step_shown
from ddp_ladder.gates.profiled import ProfiledRank
from ddp_ladder.report.view import ReportView

HEADINGS = ("kernels", "communication", "copies", "gaps", "Python")


@dataclass(frozen=True)
class TraceLink:
    """A trace: its path from the page, and its name."""

    path: str
    name: str


@dataclass(frozen=True)
class ProfileRow:
    """A rank of a scale. parts: milliseconds of its mean step and their share of it. longest: operations, in words."""

    who: str
    step_ms: str
    parts: tuple[tuple[str, str], ...]
    traces: tuple[TraceLink, ...]
    longest: str


@dataclass(frozen=True)
class ProfiledScale:
    """A scale with its ranks. measured: the parts of its measured step, by attribution, in words."""

    place: str
    measured: str
    ranks: tuple[ProfileRow, ...]


@dataclass(frozen=True)
class ProfileSection:
    """What the section shows. notes: how to read it, and what is missing."""

    scales: tuple[ProfiledScale, ...]
    notes: tuple[str, ...]
    headings: tuple[str, ...] = HEADINGS

    @property
    def is_empty(self) -> bool:
        return not self.scales


def profile_section(view: ReportView) -> ProfileSection:
    """Return what the report says of profiled steps; empty if none were profiled."""
    scales, devices = [], set()
    for point in view.points:
        profiled = point.step.profiled if point.step else ()
        if profiled:
            scales.append(ProfiledScale(view.place(point), measured_shown(point), tuple(map(_row, profiled))))
            devices |= {rank.on_cuda for rank in profiled}
    return ProfileSection(tuple(scales), tuple(_notes(devices)))


def _row(rank: ProfiledRank) -> ProfileRow:
    return ProfileRow(
        who=rank.who,
        step_ms=step_shown(rank),
        parts=parts_shown(rank),
        traces=tuple(TraceLink(f"../{path}", _name(path)) for path in rank.traces),
        longest=longest_shown(rank),
    )


def _name(path: str) -> str:
    """Return ``r2, rank 3`` for runs/default/weak/2x4/r2/ranks/rank3.trace.json.gz."""
    *_, repeat, _, file = path.split("/")
    return f"{repeat}, {file.partition('.')[0].replace('rank', 'rank ')}"


def _notes(devices: Sequence[bool] | set[bool]) -> list[str]:
    notes = [
        "These steps follow the measured ones, and are in no other figure; the profiler itself makes them longer.",
        "Communication is what nothing else hides. Gaps: nothing of the three runs, and the host is in an operator or "
        "a CUDA call; Python: it is in neither, and runs Python code or waits for data.",
        "Open a trace at ui.perfetto.dev.",
    ]
    if False in devices:
        notes.append("Without a GPU, kernels are the operators of the CPU.")
    return notes
