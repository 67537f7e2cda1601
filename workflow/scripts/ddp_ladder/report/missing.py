"""What is missing from the results, or cannot be read: each file with its path and what to do. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.accounting.jobs import JobFile
from ddp_ladder.analysis.forecast import forecast_file, read_forecast
from ddp_ladder.common.files import read_json
from ddp_ladder.common.formats import count, in_short
from ddp_ladder.common.messages import printable
from ddp_ladder.nodes.describe import Machine
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.records.record import Record
from ddp_ladder.records.run_records import RunRecords

REPEATED = "start snakemake again: the record is assembled again, or the run is repeated"
FEW = 3  # records with the same problem, each of which is named on a line of its own


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


def not_sampled(runs: Sequence[Record]) -> str:
    """Return which good runs have no samples of their nodes, in a sentence; empty if there are none."""
    good = [run for run in runs if run.status == "ok"]
    names = [run.spec.name for run in good if run.usage is None]
    if not names:
        return ""
    which = "No run was sampled" if len(names) == len(good) else f"Not sampled: {in_short(names)}"
    return f"{which}, so the use of CPUs, GPUs and memory is not known (monitor.enabled in config.yaml)."


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
    warnings = [*_unread_in_words(unread, runs.results)]
    if begun:
        one = len(begun) == 1
        warnings.append(
            f"{runs.results / 'runs'}: {count(len(begun), 'run')} {'was' if one else 'were'} begun, and "
            f"{'has' if one else 'have'} no record: {in_short(begun)}. Next: if nothing is running, start snakemake "
            f"again, which repeats {'it' if one else 'them'}"
        )
    return Believed(records, tuple(warnings), len(unread), len(begun))


def _unread_in_words(unread: Iterable[tuple[Path, str]], results: Path) -> Iterator[str]:
    """Yield a line for each record, or one for many with the same problem: a page cannot hold thousands."""
    alike: dict[str, list[Path]] = {}
    for path, why in unread:
        alike.setdefault(why, []).append(path)
    for why, paths in alike.items():
        if len(paths) <= FEW:
            yield from (f"{path}: {why}; it is left out. Next: {REPEATED}" for path in paths)
        else:
            names = [path.parent.relative_to(results / "runs").as_posix() for path in paths]
            where = f"{results / 'runs'}: {count(len(paths), 'record')}"
            yield f"{where}: {why}; they are left out: {in_short(names)}. Next: {REPEATED}"


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
    for stage in plan.stages:
        try:
            read_forecast(results, stage)
        except (OSError, ValueError) as error:
            path = forecast_file(results, stage)
            yield _left_out(path, error, "delete it, and start snakemake again: the gate below writes it again")
    scales = {str(job.scale) for job in plan.jobs}
    for path in sorted((results / "machine").glob("*/*/machine.json")):
        if path.parts[-3] not in scales:
            continue
        try:
            machine = Machine.from_json(read_json(path))
            if machine.scale != path.parts[-3]:
                raise ValueError(f"it is of {machine.scale}, and was copied here")
        except (OSError, ValueError) as error:
            yield _left_out(
                path, error, "the table of the machine lacks this node; the next job of its scale writes it"
            )
    for scale in sorted(scales):
        for path in sorted((results / "jobs" / scale).glob("*.json")):
            try:
                JobFile.from_json(read_json(path))
            except (OSError, ValueError) as error:
                yield _left_out(path, error, "delete it: the accounting lacks what this job said of itself")


def _left_out(path: Path, error: OSError | ValueError, next_step: str) -> str:
    why = (
        error.strerror
        if isinstance(error, OSError)
        else str(error).replace(f"{path} is not JSON", "not JSON").removeprefix(f"{path}: ")
    )
    return f"{path}: {why}; it is left out. Next: {next_step}"
