"""What a ladder has left so far: plan, records and gates. Nothing here raises on a bad file.

A report is wanted most when something went wrong, so what cannot be used becomes a warning in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.files import RunDirectory
from ddp_ladder.gate_file import GateView, read_gate
from ddp_ladder.plan import Plan, RunSpec
from ddp_ladder.record import Record, read_record


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


def _read_records(results: Path, runs: Iterable[RunSpec]) -> tuple[dict[str, Record], tuple[str, ...]]:
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
            warnings.append(f"{path}: the record is of other settings than the plan's; it is left out")
            continue
        records[spec.name] = record
    return records, tuple(warnings)


def _strangers(runs: Path, planned: Iterable[RunSpec]) -> tuple[str, ...]:
    names = {spec.name for spec in planned}
    found = sorted(path.parent.relative_to(runs).as_posix() for path in runs.glob("*/*/*/r*/record.json"))
    strange = [name for name in found if name not in names]
    if not strange:
        return ()
    shown = ", ".join(strange[:5]) + (", …" if len(strange) > 5 else "")
    return (f"{len(strange)} record(s) of runs that the plan does not have are left out: {shown}",)


def _read_gates(directory: Path, stages: Sequence[str]) -> tuple[dict[str, GateView], tuple[str, ...]]:
    gates: dict[str, GateView] = {}
    warnings = []
    for stage in stages:
        closed, opened = directory / f"{stage}.closed.json", directory / f"{stage}.json"
        if closed.exists() and opened.exists():
            warnings.append(f"{opened}: there is a closed gate beside it, which is taken as the later word")
        path = closed if closed.exists() else opened
        try:
            gates[stage] = read_gate(path, stage)
        except FileNotFoundError:
            continue  # not judged yet
        except OSError as error:
            warnings.append(f"{path}: the gate cannot be read ({error.strerror})")
        except ValueError as error:
            warnings.append(f"{path}: not a gate file: {error}")
    return gates, tuple(warnings)
