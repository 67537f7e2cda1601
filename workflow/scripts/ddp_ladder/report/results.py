"""The results of a ladder so far: plan, records and gates. Nothing here raises on a bad file.

A report is needed most after a failure, so a file that cannot be used becomes a warning in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ddp_ladder.accounting.jobs import JobRow
from ddp_ladder.analysis.cost import Work
from ddp_ladder.common.files import read_json
from ddp_ladder.gates.gate import gate_file_problem, judge
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.gates.verdict import Verdict, gate_files
from ddp_ladder.nodes.describe import Machine, read_machines
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.preflight.result import PreflightResult, by_scale
from ddp_ladder.records.record import Record
from ddp_ladder.records.run_records import RunRecords, as_made
from ddp_ladder.report.centre import Centre
from ddp_ladder.report.missing import RunCounts, believed_records, run_counts, unplanned_records, unread_files
from ddp_ladder.settings.terms import Scale


@dataclass(frozen=True)
class LadderResults:
    """The plan, records and gates of a report."""

    plan: Plan
    records: Mapping[str, Record]  # by RunSpec.name
    gates: Mapping[str, Verdict]  # by stage
    warnings: tuple[str, ...]
    unread: int = 0  # records that exist but cannot be read or believed
    preflights: Mapping[str, PreflightResult] = field(default_factory=dict)  # by scale
    machines: Mapping[str, Sequence[Machine]] = field(default_factory=dict)  # the nodes of each scale
    jobs: tuple[JobRow, ...] = ()  # of results/accounting.csv
    work: Work = field(default_factory=Work)  # the training whose cost is shown
    centre: Centre | None = None  # whose rules are checked
    begun: int = 0  # runs with files of a start, and without a record

    @cached_property
    def points(self) -> tuple[ScalePoint, ...]:
        """Return the figures of each variant x mode x scale."""
        return scale_points(self.plan.runs, self.records, self.plan.may_differ, self.plan.gates)

    @property
    def counts(self) -> RunCounts:
        """Return how many of the planned runs are shown, and how many are not, and why."""
        return run_counts(self.plan.runs, self.records.values(), self.unread, self.begun)


def read_results(results: Path, plan: Plan, warning: str = "") -> LadderResults:
    """Read every record and gate below ``results`` that belongs to ``plan``, and judge the gates again.

    warning: a further warning, which comes first.
    """
    runs = RunRecords(results)
    plan = as_made(plan, runs)
    believed = believed_records(runs, plan.runs)
    records = believed.records
    gates, gate_warnings = _judged(runs, plan)
    preflights, preflight_warnings = by_scale(results, (str(job.scale) for job in plan.jobs))
    first = (warning,) if warning else ()
    others = (*unplanned_records(results / "runs", plan.runs), *unread_files(results, plan))
    warnings = (*first, *believed.warnings, *gate_warnings, *preflight_warnings, *others)
    planned = {str(job.scale) for job in plan.jobs}
    machines = {scale: nodes for scale, nodes in read_machines(results).items() if scale in planned}
    work = Work(dataset_size=_dataset_size(runs, records.values()))
    return LadderResults(
        plan, records, gates, warnings, believed.unread, preflights, machines, work=work, begun=believed.begun
    )


def _dataset_size(runs: RunRecords, records: Iterable[Record]) -> int | None:
    """Return the number of samples of the training's data set, from the first scale that knows it."""
    seen: dict[Scale, RunSpec] = {}
    for record in records:
        if record.status == "ok":
            seen.setdefault(record.spec.scale, record.spec)
    for spec in seen.values():
        try:
            size = read_json(runs.directory(spec).ranks / "rank0.json")["loader"]["dataset_size"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(size, int) and size > 0:
            return size
    return None


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
