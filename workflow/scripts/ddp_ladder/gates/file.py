"""The content of a gate file, and a verdict as text for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_ladder.common.files import read_json
from ddp_ladder.common.messages import box
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.settings.terms import REFERENCE_VARIANT

GATE_SCHEMA_VERSION = 1
VERDICTS = ("open", "closed")
SANITY = "sanity"  # the name of the one finding for a run that passed all its checks


@dataclass(frozen=True)
class Finding:
    """One finding of a gate: of one variant, mode and scale (and of one repeat, for a check on one run)."""

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

    @property
    def in_words(self) -> str:
        """Return ``efficiency 0.41``, ``exit codes: rank 1: 3``: the check is not named twice."""
        return self.measured if self.measured.startswith(self.check) else f"{self.check}: {self.measured}"

    @property
    def where(self) -> str:
        place = f"{self.variant}/{self.mode}/{self.scale}"
        return f"{place}/r{self.repeat}" if self.repeat is not None else place


@dataclass(frozen=True)
class GateView:
    """The content of a gate file, as the report shows it."""

    stage: str
    verdict: str  # open or closed
    judged: tuple[Finding, ...]
    variants: Mapping[str, str]
    why: str | None
    wanted: str | None
    next: str | None

    @property
    def is_open(self) -> bool:
        """Return True if the next stage may start."""
        return self.verdict == "open"

    @property
    def failing(self) -> tuple[Finding, ...]:
        """Return the findings that close the gate or exclude a variant."""
        return tuple(item for item in self.judged if not item.ok)

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


def read_gate(path: Path, stage: str) -> GateView:
    """Read gates/<stage>.json or gates/<stage>.closed.json. Raises OSError, or ValueError if it is no such file."""
    return gate_from_json(read_json(path), stage)


def gate_from_json(data: Any, stage: str) -> GateView:
    """Build from a gate file's content. Raises ValueError if it is not the gate of ``stage``."""
    try:
        if data["schema_version"] != GATE_SCHEMA_VERSION or data["stage"] != stage:
            raise ValueError(f"not version {GATE_SCHEMA_VERSION} of the gate of {stage}")
        if data["verdict"] not in VERDICTS:
            raise ValueError(f"verdict {data['verdict']!r}, allowed: {', '.join(VERDICTS)}")
        return GateView(
            stage=stage,
            verdict=data["verdict"],
            judged=tuple(Finding(**item) for item in data["judged"]),
            variants={str(name): str(word) for name, word in data["variants"].items()},
            why=data["why"],
            wanted=data["wanted"],
            next=data["next"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def closed_variants(gate: GateView) -> dict[str, str]:
    """Return the variants that did not pass an open gate, with the reason to run them no further."""
    closed = [name for name, verdict in gate.variants.items() if verdict != "open"]
    return {name: f"variant {name} did not pass the gate of {gate.stage}" for name in closed}


def outcome_line(gate: GateView) -> str:
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


def closed_box(gate: GateView) -> str:
    """Return the box that shows why the ladder stopped and what to do next."""
    doubt = " on the estimate, uncertain" if gate.uncertain(REFERENCE_VARIANT) else ""
    rows = (
        ("verdict", f"the gate of {gate.stage} is closed{doubt}; nothing above it was started"),
        ("measured", gate.why),
        ("wanted", gate.wanted),
        ("next", gate.next),
    )
    return box(rows)
