"""The results of a ladder so far: plan, records and gates. Nothing here raises on a bad file.

A report is needed most after a failure, so a file that cannot be used becomes a warning in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ddp_ladder.accounting.jobs import JobFile, JobRow
from ddp_ladder.analysis.comparison import Folder
from ddp_ladder.analysis.cost import Work
from ddp_ladder.analysis.forecast import forecast_file, read_forecast
from ddp_ladder.common.files import read_json
from ddp_ladder.common.formats import count, full_stop, in_short
from ddp_ladder.common.messages import Problem, UserError, printable
from ddp_ladder.common.model import Model
from ddp_ladder.gates.gate import gate_file_problem, judge
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.gates.verdict import Verdict, gate_files
from ddp_ladder.nodes.describe import Machine, read_machines
from ddp_ladder.plan.file import read_plan
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.preflight.result import PreflightResult, by_scale
from ddp_ladder.records.record import Record
from ddp_ladder.records.run_records import RunRecords, as_made
from ddp_ladder.settings.terms import Scale

REPEATED = "start snakemake again: the record is assembled again, or the run is repeated"
COMPARE = "--config compare"
EXAMPLE = "snakemake compare --config 'compare=[old/results, results]'"


@dataclass(frozen=True)
class RunCounts:
    """The planned runs by what is known of them; each is counted once."""

    planned: int
    ok: int
    failed: int
    skipped: int  # not started, on purpose
    unread: int  # their records cannot be read or believed
    begun: int  # without a record, but with files of a start

    @property
    def not_run(self) -> int:
        return self.planned - self.ok - self.failed - self.skipped - self.unread - self.begun

    @property
    def not_shown(self) -> int:
        """Return how many runs have left something, and no figures."""
        return self.unread + self.begun

    @property
    def in_words(self) -> str:
        """Return ``12 runs are planned: 9 ok, 2 failed, 1 not run``."""
        known = {
            "ok": self.ok,
            "failed": self.failed,
            "not started on purpose": self.skipped,
            "left out, without a usable record": self.unread,
            "begun, without a record": self.begun,
            "not run": self.not_run,
        }
        parts = ", ".join(f"{number:,} {name}" for name, number in known.items() if number)
        return (
            f"{count(self.planned, 'run')} {'is' if self.planned == 1 else 'are'} planned{': ' if parts else ''}{parts}"
        )


def run_counts(planned: Sequence[RunSpec], records: Iterable[Record], unread: int, begun: int) -> RunCounts:
    """Count the planned runs. records: one for each run that has a usable one."""
    there = list(records)
    ok = sum(record.status == "ok" for record in there)
    skipped = sum(record.job is None and record.status != "ok" for record in there)
    return RunCounts(len(planned), ok, len(there) - ok - skipped, skipped, unread, begun)


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
    begun: int = 0  # runs with files of a start, and without a record
    directory: Path = Path("results")

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
        plan,
        records,
        gates,
        warnings,
        believed.unread,
        preflights,
        machines,
        work=work,
        begun=believed.begun,
        directory=results,
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


@dataclass(frozen=True)
class Believed:
    """The usable records by RunSpec.name, the others in words, and how many runs have files but no record."""

    records: dict[str, Record]
    warnings: tuple[str, ...]
    unread: int
    begun: int


def believed_records(runs: RunRecords, planned: Sequence[RunSpec]) -> Believed:
    """Read the records of all planned runs."""
    records: dict[str, Record] = {}
    unread: list[tuple[Path, str]] = []
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
        except OSError as error:
            unread.append((directory.record, f"the record cannot be read ({error.strerror})"))
        except ValueError as error:
            unread.append((directory.record, str(error).removeprefix(str(directory.record)).removeprefix(":").strip()))
    warnings = [*_unread_in_words(unread)]
    if begun:
        one = len(begun) == 1
        warnings.append(
            f"{runs.results / 'runs'}: {count(len(begun), 'run')} {'was' if one else 'were'} begun, and "
            f"{'has' if one else 'have'} no record: {in_short(begun)}. Next: if nothing is running, start snakemake "
            f"again, which repeats {'it' if one else 'them'}"
        )
    return Believed(records, tuple(warnings), len(unread), len(begun))


def _unread_in_words(unread: Iterable[tuple[Path, str]]) -> Iterator[str]:
    """Yield a line for all records with the same problem: a page cannot hold thousands."""
    alike: dict[str, list[str]] = {}
    for path, why in unread:
        alike.setdefault(why, []).append(str(path))
    for why, paths in alike.items():
        left_out = "it is" if len(paths) == 1 else "they are"
        yield f"{in_short(paths)}: {why}; {left_out} left out. Next: {REPEATED}"


def unplanned_records(runs: Path, planned: Iterable[RunSpec]) -> tuple[str, ...]:
    """Return a warning if there are records of runs that the plan does not have."""
    names = {spec.name for spec in planned}
    found = sorted(printable(path.parent.relative_to(runs).as_posix()) for path in runs.glob("*/*/*/r*/record.json"))
    unplanned = [name for name in found if name not in names]
    if not unplanned:
        return ()
    return (f"{len(unplanned)} record(s) of runs that the plan does not have are left out: {in_short(unplanned)}",)


def unread_files(results: Path, plan: Plan) -> Iterator[str]:
    """Yield a warning for each file beside the runs that exists and cannot be read: the report goes without it."""
    again = "delete it; a later start writes it again"
    for stage in plan.stages:
        try:
            read_forecast(results, stage)
        except (OSError, ValueError) as error:
            yield _left_out(forecast_file(results, stage), error, again)
    for scale in sorted({str(job.scale) for job in plan.jobs}):
        machines = sorted((results / "machine" / scale).glob("*/machine.json"))
        jobs = sorted((results / "jobs" / scale).glob("*.json"))
        files: list[tuple[Path, type[Model]]] = [(path, Machine) for path in machines]
        files += [(path, JobFile) for path in jobs]
        for path, model in files:
            try:
                model.from_json(read_json(path))
            except (OSError, ValueError) as error:
                yield _left_out(path, error, again)


def _left_out(path: Path, error: OSError | ValueError, next_step: str) -> str:
    why = error.strerror if isinstance(error, OSError) else str(error).replace(str(path), "").strip(": ")
    return f"{path}: {why}; it is left out. Next: {next_step}"


def read_folders(names: Sequence[str]) -> tuple[Folder, Folder]:
    """Read the plan and the records of two folders. Raises UserError with everything that is wrong with the names."""
    if problems := list(_problems(names)):
        raise UserError(problems)
    before, after = map(read_folder, names)
    return before, after


def read_folder(name: str) -> Folder:
    """Read the plan of a folder, and every record that belongs to it. Raises UserError without a plan."""
    results = Path(name)
    runs = RunRecords(results)
    plan = as_made(read_plan(results / "plan.json"), runs)
    found = believed_records(runs, plan.runs)
    return Folder(name, plan, found.records, (*found.warnings, *unplanned_records(results / "runs", plan.runs)))


def _problems(names: Sequence[str]) -> Iterator[Problem]:
    if len(names) != 2:
        found = ", ".join(names)
        yield Problem(COMPARE, "two folders are compared", found=found, allowed="two", next=EXAMPLE)
        return
    paths = [Path(name).resolve() for name in names]
    twice = dict.fromkeys(name for name, path in zip(names, paths, strict=True) if paths.count(path) > 1)
    if twice:
        yield Problem(COMPARE, "the same folder twice", found=", ".join(twice), next="name each folder once")
    for name in names:
        if not Path(name).is_dir():
            yield Problem(
                f"{COMPARE}: {name}",
                "there is no such folder",
                found=f"relative to {Path.cwd()}" if not Path(name).is_absolute() else None,
                next="name a folder of results: one with plan.json and runs/ in it",
            )
        elif not (Path(name) / "plan.json").is_file():
            inside = sorted(path.parent.name for path in Path(name).glob("*/plan.json"))
            hint = f"; perhaps {Path(name) / inside[0]}" if inside else ""
            yield Problem(
                f"{COMPARE}: {name}",
                "this is no folder of results: there is no plan.json in it",
                next=full_stop(f"name the folder with plan.json and runs/ in it{hint}"),
            )
