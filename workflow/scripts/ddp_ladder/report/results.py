"""The results of a ladder so far: plan, records and gates. Nothing here raises on a bad file.

A report is needed most after a failure, so a file that cannot be used becomes a warning in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ddp_ladder.analysis.decisions import Work, with_flops, with_tokens
from ddp_ladder.assembly.run_records import RunRecords, as_made
from ddp_ladder.common.formats import count, grouped, in_short
from ddp_ladder.common.messages import printable
from ddp_ladder.gates.gate import judge
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.gates.verdict import Verdict, gate_files
from ddp_ladder.ledger.jobs import JobRow
from ddp_ladder.nodes.sampler import NodeDescription, read_machines
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.plan.short_runs import Fit, fit_of
from ddp_ladder.preflight.result import BadNode, PreflightResult, bad_nodes, by_scale
from ddp_ladder.records.record import Record

REPEATED = "start snakemake again: the record is assembled again, or the run is repeated"


@dataclass(frozen=True)
class LadderResults:
    """The plan, records and gates of a report."""

    plan: Plan
    records: Mapping[str, Record]  # by RunSpec.name
    gates: Mapping[str, Verdict]  # by stage
    warnings: tuple[str, ...]
    unread: int = 0  # records that exist but cannot be read or believed
    preflights: Mapping[str, PreflightResult] = field(default_factory=dict)  # by scale
    machines: Mapping[str, Sequence[NodeDescription]] = field(default_factory=dict)  # the nodes of each scale
    jobs: tuple[JobRow, ...] = ()  # of results/accounting.csv
    work: Work = field(default_factory=Work)  # the training whose cost is shown
    begun: int = 0  # runs with files of a start, and without a record
    directory: Path = Path("results")
    fit: Fit | None = None  # the search that chose the batch
    bad_nodes: tuple[BadNode, ...] = ()

    @cached_property
    def points(self) -> tuple[ScalePoint, ...]:
        points = scale_points(self.plan.runs, self.records, self.plan.may_differ, self.plan.gates)
        points = tuple(with_tokens(point, self.plan.units.tokens_per_sample) for point in points)
        return with_flops(points, {scale: result.matrix_tflop_per_s for scale, result in self.preflights.items()})

    @property
    def counts(self) -> str:
        """Return ``12 runs are planned: 9 ok, 2 failed, 1 not run``: each planned run is counted once."""
        planned, records = len(self.plan.runs), self.records.values()
        ok = sum(record.status == "ok" for record in records)
        skipped = sum(record.job is None and record.status != "ok" for record in records)
        known = {
            "ok": ok,
            "failed": len(records) - ok - skipped,
            "not started on purpose": skipped,
            "left out, without a usable record": self.unread,
            "begun, without a record": self.begun,
            "not run": planned - len(records) - self.unread - self.begun,
        }
        parts = ", ".join(f"{number:,} {name}" for name, number in known.items() if number)
        return f"{count(planned, 'run')} {'is' if planned == 1 else 'are'} planned{': ' if parts else ''}{parts}"


def read_results(results: Path, plan: Plan, warning: str = "", runs: RunRecords | None = None) -> LadderResults:
    """Read the records that belong to ``plan``, and judge again the gates that have been judged.

    warning: a further warning, which comes first.
    """
    runs = runs or RunRecords(results)
    plan = as_made(plan, runs)
    believed = believed_records(runs, plan.runs)
    planned = {str(job.scale): job for job in plan.jobs}
    preflights, preflight_warnings = by_scale(results, planned)
    judged = [stage for stage in plan.stages if any(file.exists() for file in gate_files(results / "gates", stage))]
    good = [record for record in believed.records.values() if record.status == "ok"]
    return LadderResults(
        plan,
        believed.records,
        {stage: judge(plan, stage, results, runs) for stage in judged},
        (*filter(None, [warning]), *believed.warnings, *preflight_warnings, *_other_tokens(plan, good)),
        believed.unread,
        preflights,
        {scale: nodes for scale, nodes in read_machines(results).items() if scale in planned},
        work=Work.seen_in(good, plan.units.tokens_per_sample),
        begun=believed.begun,
        directory=results,
        fit=fit_of(plan, results),
        bad_nodes=bad_nodes(results),
    )


# --- Records.


@dataclass(frozen=True)
class Believed:
    """The usable records, and the others in words."""

    records: dict[str, Record]  # by RunSpec.name
    warnings: tuple[str, ...]
    unread: int  # records that exist but cannot be used
    begun: int  # runs that have files but no record


def believed_records(runs: RunRecords, planned: Sequence[RunSpec]) -> Believed:
    """Read the records of all planned runs."""
    records: dict[str, Record] = {}
    unread: list[tuple[str, str]] = []  # what is wrong, and the path
    begun: list[str] = []
    for spec in planned:
        directory = runs.directory(spec)
        try:
            records[spec.name] = runs.believed(spec)
        except FileNotFoundError:
            if kept := runs.kept(spec):
                records[spec.name] = kept  # Snakemake deletes the records of a job that fails in the end
            elif any(path.exists() for path in (directory.run, directory.ended, directory.ranks, directory.nodes)):
                begun.append(spec.name)
            # Otherwise it has not been run yet, as its row in the table shows.
        except (OSError, ValueError) as error:
            why = f"the record cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)
            path = str(directory.record)
            unread.append((why.removeprefix(path).removeprefix(":").strip(), path))
    # Those alike in one line: a page cannot hold thousands.
    warnings = [f"{in_short(paths)}: {why}; left out. Next: {REPEATED}" for why, paths in grouped(unread).items()]
    if begun:
        again = "if nothing is running, start snakemake again, which repeats what was begun"
        warnings.append(f"{count(len(begun), 'run')} begun, without a record: {in_short(begun)}. Next: {again}")
    return Believed(
        records,
        (*runs.changes_of_rules(), *warnings, *_unplanned_records(runs.results / "runs", planned)),
        len(unread),
        len(begun),
    )


def _other_tokens(plan: Plan, records: Iterable[Record]) -> Iterator[str]:
    """Yield a warning if samples had other lengths than the settings say; without padding, they may be shorter."""
    said = plan.units.tokens_per_sample
    seen = sorted({tokens for record in records if (tokens := record.fingerprint.tokens_per_sample)})
    if said is not None and seen not in ([], [said]):
        lengths = " or ".join(map(str, seen))
        yield f"tokens/s are of workload.tokens_per_sample ({said}); input_ids had {lengths} tokens, padding included"


def _unplanned_records(runs: Path, planned: Iterable[RunSpec]) -> Iterator[str]:
    names = (printable(path.parent.relative_to(runs).as_posix()) for path in runs.glob("*/*/*/r*/record.json"))
    if unplanned := sorted({*names} - {spec.name for spec in planned}):
        yield f"{len(unplanned)} record(s) of runs that the plan does not have are left out: {in_short(unplanned)}"
