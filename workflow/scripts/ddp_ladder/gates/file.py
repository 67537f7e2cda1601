"""The verdict of a gate: the content of its file, and its text for the terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from ddp_ladder.common.messages import box
from ddp_ladder.common.model import IN_A_MODEL, Model, Several, Version1
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.records.record import Evidence, placed, quoted_lines
from ddp_ladder.settings.terms import REFERENCE_VARIANT

SANITY = "sanity"  # the name of the one finding for a run that passed all its checks
Word = Literal["open", "closed"]


@dataclass(frozen=True)
class Finding:
    """One finding of a gate: of one variant, mode and scale, and of one repeat if it is a check on one run."""

    __pydantic_config__: ClassVar = IN_A_MODEL
    variant: str
    mode: str
    scale: str
    repeat: int | None
    check: str
    ok: bool
    measured: str
    wanted: str
    next: str
    uncertain: bool = False  # the threshold lies inside the interval
    place: str = ""  # of a failure: rank and node, as far as they are known
    at_s: float | None = None  # of a failure: unix time
    evidence: tuple[Evidence, ...] = ()  # of a failure: the lines that show it
    shown_by: tuple[str, ...] = ()  # of a lost efficiency: the figures that show its largest cause

    @property
    def in_words(self) -> str:
        """Return ``efficiency 0.41``, ``exit codes: rank 1: 3``: the check is not named twice."""
        check = placed(self.check, self.place, self.measured)
        return self.measured if self.measured.startswith(self.check) else f"{check}: {self.measured}"

    @property
    def where(self) -> str:
        place = f"{self.variant}/{self.mode}/{self.scale}"
        return f"{place}/r{self.repeat}" if self.repeat is not None else place


class Verdict(Model):
    """The decision of a stage's gate, with its evidence."""

    schema_version: Version1
    stage: str
    verdict: Word = Field(description="Open: the next stage may start.")
    why: str | None = Field(description="The first finding that closes the gate; null if it is open.")
    wanted: str | None
    next: str | None
    variants: Mapping[str, Word] = Field(description="The gate is open if the default variant passed.")
    judged: Several[Finding]
    points: Several[ScalePoint] = Field(description="Rows of scaling.csv up to this stage.")
    records: Mapping[str, str] = Field(description="SHA-256 of each record that was judged, by path.")

    @property
    def is_open(self) -> bool:
        """Return True if the next stage may start."""
        return self.verdict == "open"

    @property
    def failing(self) -> tuple[Finding, ...]:
        """Return the findings that close the gate or exclude a variant."""
        return tuple(item for item in self.judged if not item.ok)

    @property
    def reason(self) -> Finding | None:
        """Return the first finding that closes the gate; None if it is open."""
        return next((item for item in self.failing if item.variant == REFERENCE_VARIANT), None)

    @property
    def worth_showing(self) -> tuple[Finding, ...]:
        """Return every threshold and every failed check; runs that passed all sanity checks are only counted."""
        return tuple(item for item in self.judged if not item.ok or item.check != SANITY)

    @property
    def sane_runs(self) -> int:
        """Return how many runs passed every sanity check."""
        return sum(item.ok and item.check == SANITY for item in self.judged)

    def verdict_of(self, point: ScalePoint) -> str:
        """Return the verdict on the point's variant; the gate's own verdict if it has none for this variant."""
        return self.variants.get(point.variant, self.verdict)

    def uncertain(self, variant: str) -> tuple[Finding, ...]:
        """Return the findings that make the verdict uncertain; empty if a certain finding closes the gate as well."""
        own = [item for item in self.judged if item.variant == variant]
        failing = [item for item in own if not item.ok]
        deciding = failing or [item for item in own if item.uncertain]
        return tuple(deciding) if all(item.uncertain for item in deciding) else ()

    def words_of(self, point: ScalePoint) -> str:
        """Return ``open`` or ``closed (uncertain)``."""
        return f"{self.verdict_of(point)}{' (uncertain)' if self.uncertain(point.variant) else ''}"


def gate_files(gates: Path, stage: str) -> tuple[Path, Path]:
    """Return the paths of a stage's gate file when open and when closed."""
    return gates / f"{stage}.json", gates / f"{stage}.closed.json"


def closed_variants(gate: Verdict) -> dict[str, str]:
    """Return the variants that did not pass an open gate, with the reason to run them no further."""
    closed = [name for name, verdict in gate.variants.items() if verdict != "open"]
    return {name: f"variant {name} did not pass the gate of {gate.stage}" for name in closed}


def outcome_line(gate: Verdict) -> str:
    """Return ``gate stage2: open`` or ``gate stage2: CLOSED, <why>``."""
    if gate.is_open:
        closed = ", ".join(closed_variants(gate))
        doubts = "; ".join(f"{item.scale} {item.in_words}" for item in gate.uncertain(REFERENCE_VARIANT))
        return (
            f"gate {gate.stage}: open"
            + (f" (without {closed}: see the report)" if closed else "")
            + (f", {doubts}" if doubts else "")
        )
    return f"gate {gate.stage}: CLOSED, {gate.why}"


def closed_box(gate: Verdict) -> str:
    """Return the box that shows why the ladder stopped and what to do next."""
    doubt = " on the estimate, uncertain" if gate.uncertain(REFERENCE_VARIANT) else ""
    closed = f"the gate of {gate.stage} is closed{doubt}; nothing above it was started"
    failed = gate.reason
    if failed is not None and failed.place:
        when = time.strftime(" at %H:%M:%S", time.localtime(failed.at_s)) if failed.at_s else ""
        return box(
            (
                ("verdict", f"{failed.check} ({failed.place}){when}\n{closed}"),
                ("run", failed.where),
                ("why", failed.measured),
                *((("evidence", quoted),) if (quoted := quoted_lines(failed.evidence, failed.measured)) else ()),
                # Of a run it says no more than that it should have ended well.
                *((("wanted", gate.wanted),) if failed.repeat is None else ()),
                ("next", gate.next),
            )
        )
    rows = (
        ("verdict", closed),
        ("measured", gate.why),
        *((("evidence", "\n".join(failed.shown_by)),) if failed and failed.shown_by else ()),
        ("wanted", gate.wanted),
        ("next", gate.next),
    )
    return box(rows)
