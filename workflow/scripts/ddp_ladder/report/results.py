"""The results of a ladder so far: plan, records and gates. Nothing here raises on a bad file.

A report is needed most after a failure, so a file that cannot be used becomes a warning in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.common.formats import in_short
from ddp_ladder.common.messages import printable
from ddp_ladder.gates.file import Verdict, gate_files
from ddp_ladder.gates.gate import gate_file_problem, judge
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.records.record import Record
from ddp_ladder.records.run_records import NOT_ITS_FILES, RunRecords


@dataclass(frozen=True)
class LadderResults:
    """The plan, records and gates of a report."""

    plan: Plan
    records: Mapping[str, Record]  # by RunSpec.name
    gates: Mapping[str, Verdict]  # by stage
    warnings: tuple[str, ...]
    unread: int = 0  # records that exist but cannot be read or believed


def read_results(results: Path, plan: Plan, warning: str = "") -> LadderResults:
    """Read every record and gate below ``results`` that belongs to ``plan``, and judge the gates again.

    warning: a further warning, which comes first.
    """
    runs = RunRecords(results)
    records, record_warnings = _believed(runs, plan.runs)
    gates, gate_warnings = _judged(runs, plan)
    first = (warning,) if warning else ()
    warnings = (*first, *record_warnings, *gate_warnings, *_unplanned_records(results / "runs", plan.runs))
    return LadderResults(plan, records, gates, warnings, len(record_warnings))


def _believed(runs: RunRecords, planned: Iterable[RunSpec]) -> tuple[dict[str, Record], tuple[str, ...]]:
    records, warnings = {}, []
    for spec in planned:
        path = runs.directory(spec).record
        try:
            records[spec.name] = runs.believed(spec)
        except FileNotFoundError as error:
            if path.exists():
                warnings.append(f"{path}: {NOT_ITS_FILES} ({error.filename} is missing); it is left out")
            elif kept := runs.kept(spec):
                records[spec.name] = kept  # Snakemake deletes the records of a job that fails in the end
            # Otherwise it has not been run yet, as its row in the table shows.
        except OSError as error:
            warnings.append(f"{path}: the record cannot be read ({error.strerror}); it is left out")
        except ValueError as error:
            where = "" if str(error).startswith(str(path)) else f"{path}: "
            warnings.append(f"{where}{error}; it is left out")
    return records, tuple(warnings)


def _unplanned_records(runs: Path, planned: Iterable[RunSpec]) -> tuple[str, ...]:
    names = {spec.name for spec in planned}
    found = sorted(printable(path.parent.relative_to(runs).as_posix()) for path in runs.glob("*/*/*/r*/record.json"))
    unplanned = [name for name in found if name not in names]
    if not unplanned:
        return ()
    return (f"{len(unplanned)} record(s) of runs that the plan does not have are left out: {in_short(unplanned)}",)


def _judged(runs: RunRecords, plan: Plan) -> tuple[dict[str, Verdict], tuple[str, ...]]:
    """Return the gates that have been judged before, judged again, and warnings where a file disagrees."""
    gates: dict[str, Verdict] = {}
    warnings = []
    for stage in plan.stages:
        if not any(file.exists() or file.is_symlink() for file in gate_files(runs.results / "gates", stage)):
            continue  # not judged yet
        verdict = judge(plan, stage, runs.results, runs)
        gates[stage] = verdict
        problem = gate_file_problem(verdict, runs.results / "gates")
        if problem is not None:
            found = f" ({problem.found})" if problem.found else ""
            shown = "what is shown is judged on the records as they are"
            warnings.append(f"{problem.where}: {problem.what}{found}; {shown}. Next: {problem.next}")
    return gates, tuple(warnings)
