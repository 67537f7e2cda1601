"""What a ladder has left so far: plan, records and gates. Nothing here raises on a bad file.

A report is wanted most when something went wrong, so what cannot be used becomes a warning in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_ladder.files import RunDirectory, read_json
from ddp_ladder.plan import Plan, RunSpec
from ddp_ladder.record import Record, read_record
from ddp_ladder.scaling import ScalePoint

GATE_SCHEMA_VERSION = 1
VERDICTS = ("open", "closed")
SANITY = "sanity"  # the check under which a gate notes a run that held all of them


@dataclass(frozen=True)
class Judged:
    """One check of a gate at one scale."""

    variant: str
    mode: str
    scale: str
    check: str
    ok: bool
    measured: str
    wanted: str
    next: str | None
    repeat: int | None = None  # of a check on one run

    @property
    def in_words(self) -> str:
        """``efficiency 0.41``; the check is not named twice when the measurement names it."""
        if self.measured.startswith(self.check):
            return self.measured
        return f"{self.check}: {self.measured}"


@dataclass(frozen=True)
class GateView:
    """A gate file as a reader of the report needs it."""

    stage: str
    verdict: str  # open or closed
    judged: tuple[Judged, ...]
    variants: Mapping[str, str]
    why: str | None
    next: str | None

    @property
    def is_open(self) -> bool:
        """Whether the next stage may start."""
        return self.verdict == "open"

    @property
    def failing(self) -> tuple[Judged, ...]:
        """What keeps it closed, or kept a variant out."""
        return tuple(item for item in self.judged if not item.ok)

    @property
    def worth_showing(self) -> tuple[Judged, ...]:
        """What did not hold, and every threshold; sanity that held is only counted."""
        return tuple(item for item in self.judged if not item.ok or item.check != SANITY)

    @property
    def sane_runs(self) -> int:
        """How many runs held every check of sanity."""
        return sum(item.ok and item.check == SANITY for item in self.judged)

    def verdict_of(self, point: ScalePoint) -> str:
        """The verdict on the point's variant; the gate's own where variants are not told apart."""
        return self.variants.get(point.variant, self.verdict)


@dataclass(frozen=True)
class LadderResults:
    """Everything that the report is made of."""

    plan: Plan
    records: Mapping[str, Record]  # by RunSpec.name
    gates: Mapping[str, GateView]  # by stage
    warnings: tuple[str, ...]


def read_results(results: Path, plan: Plan) -> LadderResults:
    """Read every record and gate below ``results`` that belongs to ``plan``."""
    records, record_warnings = _read_records(results, plan.runs)
    gates, gate_warnings = _read_gates(results / "gates", plan.stages)
    warnings = (*record_warnings, *gate_warnings, *_strangers(results / "runs", plan.runs))
    return LadderResults(plan, records, gates, warnings)


def _read_records(
    results: Path, runs: Iterable[RunSpec]
) -> tuple[dict[str, Record], tuple[str, ...]]:
    records, warnings = {}, []
    for spec in runs:
        path = RunDirectory(results / "runs" / spec.name).record
        try:
            record = read_record(path)
        except FileNotFoundError:
            continue  # not run yet: its row in the table says so
        except OSError as error:
            warnings.append(f"{path}: the record cannot be read ({error.strerror}); it is left out")
            continue
        except ValueError as error:
            warnings.append(f"{error}; it is left out")
            continue
        if record.spec_hash != spec.hash or record.spec.hash != spec.hash:
            warnings.append(
                f"{path}: the record is of other settings than the plan's; it is left out"
            )
            continue
        records[spec.name] = record
    return records, tuple(warnings)


def _strangers(runs: Path, planned: Iterable[RunSpec]) -> tuple[str, ...]:
    names = {spec.name for spec in planned}
    found = sorted(
        path.parent.relative_to(runs).as_posix() for path in runs.glob("*/*/*/r*/record.json")
    )
    strange = [name for name in found if name not in names]
    if not strange:
        return ()
    shown = ", ".join(strange[:5]) + (", …" if len(strange) > 5 else "")
    return (f"{len(strange)} record(s) of runs that the plan does not have are left out: {shown}",)


def _read_gates(
    directory: Path, stages: Sequence[str]
) -> tuple[dict[str, GateView], tuple[str, ...]]:
    gates: dict[str, GateView] = {}
    warnings = []
    for stage in stages:
        closed, opened = directory / f"{stage}.closed.json", directory / f"{stage}.json"
        if closed.exists() and opened.exists():
            warnings.append(
                f"{opened}: there is a closed gate beside it, which is taken as the later word"
            )
        path = closed if closed.exists() else opened
        try:
            gates[stage] = gate_from_json(read_json(path), stage)
        except FileNotFoundError:
            continue  # not judged yet
        except OSError as error:
            warnings.append(f"{path}: the gate cannot be read ({error.strerror})")
        except ValueError as error:
            warnings.append(f"{path}: not a gate file: {error}")
    return gates, tuple(warnings)


def gate_from_json(data: Any, stage: str) -> GateView:
    """Build from a gate file's content. Raises ValueError when it is not the gate of ``stage``."""
    try:
        if data["schema_version"] != GATE_SCHEMA_VERSION or data["stage"] != stage:
            raise ValueError(f"not version {GATE_SCHEMA_VERSION} of the gate of {stage}")
        if data["verdict"] not in VERDICTS:
            raise ValueError(f"verdict {data['verdict']!r}, allowed: {', '.join(VERDICTS)}")
        return GateView(
            stage=stage,
            verdict=data["verdict"],
            judged=tuple(_judged(item) for item in data["judged"]),
            variants={str(name): str(word) for name, word in data["variants"].items()},
            why=data["why"],
            next=data["next"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _judged(data: Mapping[str, Any]) -> Judged:
    return Judged(
        variant=str(data["variant"]),
        mode=str(data["mode"]),
        scale=str(data["scale"]),
        check=str(data["check"]),
        ok=bool(data["ok"]),
        measured=str(data["measured"]),
        wanted=str(data["wanted"]),
        next=data["next"] or None,
        repeat=data.get("repeat"),
    )
