"""What each job asked for, held and used: results/accounting.csv, one row per job.

A job's own file, results/jobs/<scale>/<job>.json, says what it asked for and when it began and ended; the records of
its runs say what it did. One call of sacct adds Slurm's state, times and use; without slurmdbd its own times count.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
import shutil
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.common.files import (
    NotWritten,
    RunDirectory,
    canonical_sha256,
    read_as,
    readable,
    write_atomically,
    write_json,
)
from ddp_ladder.common.formats import count, duration
from ddp_ladder.common.messages import UserError, columns
from ddp_ladder.common.model import Amount, Count, Model, Positive, Version1
from ddp_ladder.common.process import Interrupted
from ddp_ladder.ledger.entries import ALL_OWNERS, HOUR_S, PREFLIGHT, TRAINING, WITNESS, Ledger, RunShare
from ddp_ladder.measuring.owners import END, LAUNCHER, NOT_TOLD_APART, PROFILE, STARTUP
from ddp_ladder.plan.plan import Hours, HourUnit, Plan, ScaleJob
from ddp_ladder.plan.short_runs import place_of
from ddp_ladder.preflight.result import bad_nodes, result_of
from ddp_ladder.records.packed import RawContent
from ddp_ladder.records.raw_files import RawRun, of_run_if_there, read_raw_run
from ddp_ladder.records.raw_models import Progress, RunEnd, RunFile, read_run_file
from ddp_ladder.records.record import Failure, Record
from ddp_ladder.slurm.jobs import AGAIN, ENDED_WELL, GONE, Advice, JobState, ask, scale_of_name
from ddp_ladder.slurm.lock import CLOCKS_S
from ddp_ladder.slurm.query import SlurmError, sacct, tres, unix_time

SACCT = "JobIDRaw,JobName,State,Submit,End,ElapsedRaw,NNodes,NodeList,ReqTRES,AllocTRES"
ANSWER_WITHIN_S = 10.0  # a gate and a report wait for this
RUNS = JobState("RUNNING")  # of a job of which nobody can be asked
SIGNIFICANT = 10
DIGITS = 10

Kind = Literal["measure", "preflight", "fit", "production", "rehearsal"]


class JobRow(Model):
    """One job in results/accounting.csv. A field is empty if nothing measured it."""

    job_id: str  # Slurm's; with .2, .3, ... for later starts in one allocation
    kind: Kind
    stage: str
    scale: str
    source: Literal["sacct", "none"]  # who reports times, state and resources; none: the job
    state: str  # Slurm's; ENDED if only the job itself reports its end
    started_at: str | None = None  # UTC
    ended_at: str  # UTC
    queue_wait_s: Amount | None = None
    elapsed_s: Amount
    nodes: Count
    node_list: str | None = None
    gpus: Count  # allocated; if Slurm does not count them, those of the scale
    runs_planned: Count  # this one and the next two without the plain baseline
    runs_measured: Count  # by this job, without those that were kept from an earlier one
    runs_ok: Count
    preflight_s: Amount
    startup_s: Amount  # of its runs, from launch to the end of the first step
    # From there to the end of the last step, with validation and saving; to the run's end if steps' ends are not known.
    training_s: Amount
    gpu_hours_held: Amount  # elapsed_s x GPUs
    gpu_hours_training: Amount  # training_s x GPUs of the scale
    specs: str = ""  # digest of the planned runs: rows of the same runs can be compared
    launcher_s: Amount = 0.0  # of its runs, before their ranks start and after they end
    end_s: Amount = 0.0  # of its runs, from the last step to the end of the ranks, without validation and saving
    bad_node: str | None = None  # that failed its preflight; the scale was to be submitted again without it
    gpus_used: Count | None = None  # of the scale; None: an earlier version wrote it


class JobFile(Model):
    """A job's own account of itself. Times are unix times of the host on which it runs."""

    schema_version: Version1
    kind: Kind  # measure: the runs of a scale; the others: `snakemake` of that name
    stage: str
    scale: str
    in_allocation: bool  # it is a part of a Slurm job that the user made
    job_id: str  # Slurm's; without Slurm local-<host>-<time>-<process>
    nodes: Positive
    gpus: Positive  # of the scale; without a GPU a process counts as one
    gpus_allocated: Count | None = None  # that Slurm gave to it, as its own environment shows; None: not known
    runs_planned: Count  # without the plain baseline
    specs: str  # digest of the planned runs: jobs of the same runs can be compared
    begun_at_s: float  # of one that has not begun: of its submission
    ended_at_s: float | None  # None: it is running, or was killed
    row: JobRow | None = None  # its row in accounting.csv, once it is over
    number: Count = 0  # its place among those that began; 0: it has none yet, or a version without numbers made it
    has_begun: bool = True  # False: whoever submitted it wrote the file, and the job has not
    ended_by: str | None = None  # the signal that ended it before its work was done
    problem: Failure | None = None  # why it could not do its work, in its own words

    @property
    def has_held(self) -> bool:
        """Return True if it has held nodes, as far as is known."""
        return self.has_begun or self.ended_at_s is not None or (self.row is not None and self.row.elapsed_s > 0)

    def had_at(self, at_s: float, end_s: float) -> bool:
        """Return True unless it is one of several starts in an allocation, and was not there then (unix times)."""
        return not self.in_allocation or self.begun_at_s - 1 <= at_s <= end_s + 1

    @property
    def gpus_held(self) -> int:
        """Return the GPUs that it holds, which a centre bills; those of the scale if nothing tells more."""
        return (self.row and self.row.gpus) or self.gpus_allocated or self.gpus

    @property
    def slurm_id(self) -> str | None:
        """Its id in Slurm; None if it is not a Slurm job of its own."""
        return self.job_id if self.job_id.isdecimal() and not self.in_allocation else None


# --- The job's own file.


def specs_digest(job: ScaleJob) -> str:
    """Return the digest of a job's planned runs, without further repeats."""
    return canonical_sha256([run.hash for run in job.runs if run.repeat <= job.at_least])[:DIGITS]


def runs_of(job: ScaleJob) -> int:
    """Return the number of a job's planned runs, without the plain baseline, which many scripts cannot run."""
    return sum(not run.is_plain and run.repeat <= job.at_least for run in job.runs)


def in_order(file: JobFile) -> tuple[int, float]:
    """Return the key that puts the jobs of a scale in their order, whatever their clocks showed."""
    return file.number, file.begun_at_s


def job_files(results: Path) -> Iterator[tuple[Path, JobFile]]:
    """Yield each job's file with its content, except those that cannot be read."""
    for path in _paths(results):
        if file := readable(JobFile, path):
            yield path, file


def _paths(results: Path) -> list[Path]:
    return sorted((results / "jobs").glob("*/*.json"))


def _missing(results: Path) -> Iterator[str]:
    """Yield a warning for each job whose file cannot be read."""
    for path in _paths(results):
        try:
            read_as(JobFile, path)
        except (OSError, ValueError) as error:
            yield f"{path} cannot be read, and its job is missing in {accounting_file(results).name}: {error}"


@contextmanager
def accounted(results: Path, job: ScaleJob, job_id: str, kind: Kind) -> Iterator[None]:
    """Write the file of the job that this process is, at its begin and its end. A full disk does not fail it.

    Its length is not that of the clock, which may be set meanwhile.
    """
    path, file = _new_file(results, job, job_id, kind, _is_in_allocation(os.environ))
    begun_s, ended_by, problem = time.monotonic(), None, None
    with suppress(OSError):
        write_json(path, file.model_dump())
    try:
        yield
    except Interrupted as interrupted:
        ended_by = str(interrupted)
        raise
    except (UserError, NotWritten) as error:
        first = error.problem if isinstance(error, NotWritten) else error.problems[0]
        problem = Failure(verdict=f"{first.where}: {first.what}", why=first.found or "", next=first.next or AGAIN)
        raise
    finally:
        ended_at_s = file.begun_at_s + time.monotonic() - begun_s
        with suppress(OSError):
            write_json(path, file.replace(ended_at_s=ended_at_s, ended_by=ended_by, problem=problem).model_dump())


def own_problem(results: Path, scale: str, job_id: str) -> Advice | None:
    """Return why a job of Slurm could not do its work, in its own words; None if it left none."""
    own = (file.problem for _, file in job_files(results) if (file.scale, file.slurm_id) == (scale, job_id))
    problem = next(filter(None, own), None)
    return Advice(": ".join(filter(None, (problem.verdict, problem.why))), problem.next) if problem else None


def submitted(results: Path, job: ScaleJob, job_id: str, kind: Kind) -> None:
    """Write the file of a job that was submitted, unless it has one: it holds nodes, whatever it comes to write itself.

    Raises NotWritten.
    """
    if not (results / "jobs" / str(job.scale) / f"{job_id}.json").exists():
        path, file = _new_file(results, job, job_id, kind, in_allocation=False)
        write_json(path, file.replace(has_begun=False, number=0).model_dump())


def withdraw(results: Path, job_id: str) -> None:
    """Delete the file of a job that was cancelled in the queue, or found nothing to do."""
    for path, file in _not_begun(results):
        if file.job_id == job_id:
            path.unlink(missing_ok=True)


def settle(results: Path, most_s: float, but: str | None = None) -> None:
    """End the accounts of jobs that are over and did not, and delete those of jobs that held no node.

    most_s: the time of a job: it held its nodes for no longer, and for that long if nothing tells more. but: a job that
    is not over. Raises SlurmError.
    """
    silent = {
        file.job_id: (path, file)
        for path, file in job_files(results)
        if file.ended_at_s is None and file.row is None and file.slurm_id not in (None, but)
    }
    states = ask(silent) if silent and shutil.which("squeue") else {}
    for job_id, (path, file) in silent.items():
        state = states.get(job_id, RUNS)
        if state.phase != "ended":
            continue
        if state.state != GONE and not state.nodes and not file.has_begun:
            path.unlink(missing_ok=True)
            continue
        since_s = (state.since_start_s, time.time() - file.begun_at_s)
        held_s = min(most_s, *(seconds for seconds in since_s if seconds is not None and seconds >= 0))
        number = file.number or _next_number(path.parent)
        write_json(path, file.replace(ended_at_s=file.begun_at_s + held_s, number=number).model_dump())


def note_end(results: Path, job: ScaleJob, ended_by: str | None, held_s: float) -> None:
    """Write the end of the last job of a scale, which was killed, as the process that started it saw it."""
    files = [(path, file) for path, file in job_files(results) if file.scale == str(job.scale)]
    for path, file in sorted(files, key=lambda item: in_order(item[1]))[-1:]:
        if file.ended_at_s is None:
            with suppress(OSError):
                write_json(path, file.replace(ended_at_s=file.begun_at_s + held_s, ended_by=ended_by).model_dump())


def _not_begun(results: Path) -> Iterator[tuple[Path, JobFile]]:
    for path, file in job_files(results):
        if not file.has_begun and file.ended_at_s is None:
            yield path, file


def _next_number(directory: Path) -> int:
    """Return the number of the job of a scale that begins now. A file that cannot be read has had one, too."""
    files = {path: file for path, file in job_files(directory.parent.parent) if path.parent == directory}
    begun = [path for path in directory.glob("*.json") if path not in files or files[path].has_held]
    return max(len(begun), *(file.number for file in files.values()), 0) + 1


def _new_file(results: Path, job: ScaleJob, job_id: str, kind: Kind, in_allocation: bool) -> tuple[Path, JobFile]:
    """Return a job's file as it begins, and its path. A later start in the same allocation gets another name."""
    directory = results / "jobs" / str(job.scale)
    known = next((path for path, file in _not_begun(results) if file.job_id == job_id), None)
    names = itertools.chain([job_id], (f"{job_id}.{number}" for number in itertools.count(2)))
    path = known or next(path for name in names if not (path := directory / f"{name}.json").exists())
    file = JobFile(
        schema_version=1,
        kind=kind,
        stage=job.stage,
        scale=str(job.scale),
        in_allocation=in_allocation,
        job_id=job_id,
        nodes=job.scale.nodes,
        gpus=job.scale.world_size,
        gpus_allocated=_allocated(job.scale.nodes, os.environ) if not in_allocation else None,
        runs_planned=runs_of(job) if kind == "measure" else 0,
        specs=specs_digest(job),
        begun_at_s=time.time(),
        ended_at_s=None,
        number=_next_number(directory),
    )
    return path, file


def _is_in_allocation(environment: Mapping[str, str]) -> bool:
    """Return True in a Slurm job that is not the ladder's own. In that, Snakemake removes the name, or it is ours."""
    name = environment.get("SLURM_JOB_NAME")
    return "SLURM_JOB_ID" in environment and name is not None and scale_of_name(name) is None


def _allocated(nodes: int, environment: Mapping[str, str]) -> int | None:
    """Return the GPUs that Slurm gave to the job that this process is; None if it does not tell."""
    on_node = environment.get("SLURM_GPUS_ON_NODE", "")
    return nodes * int(on_node) if on_node.isdecimal() else None


# --- What sacct knows.


@dataclass(frozen=True)
class Accounted:
    """A job that is over, as sacct reports it."""

    name: str
    end_s: float
    figures: Mapping[str, Any]  # of its row


def ask_sacct(job_ids: Sequence[str]) -> dict[str, Accounted]:
    """Return the jobs that sacct knows to be over; none without slurmdbd, or without an answer."""
    if not job_ids:
        return {}
    try:
        rows = sacct(SACCT, "--allocations", f"--jobs={','.join(job_ids)}", within_s=ANSWER_WITHIN_S)
    except SlurmError:
        return {}
    return {row["JobIDRaw"]: job for row in rows if (job := _accounted(row))}


def _accounted(line: Mapping[str, str]) -> Accounted | None:
    """Return a job that is over, and Slurm knows when; None for another."""
    state, end_s = line["State"].partition(" ")[0], unix_time(line["End"])  # CANCELLED by 1000
    if JobState(state).phase != "ended" or end_s is None:
        return None
    given = tres(line["AllocTRES"] or line["ReqTRES"])
    node_list = "" if line["NodeList"] == "None assigned" else line["NodeList"]
    submit_s, elapsed_s = unix_time(line["Submit"]), float(line["ElapsedRaw"] or 0) if node_list else 0.0
    typed = [number for name, number in given.items() if name.startswith("gres/gpu:")]
    figures = {
        "source": "sacct",
        "state": state,
        "started_at": _utc(end_s - elapsed_s) if node_list else None,  # cancelled while it waited
        "ended_at": _utc(end_s),
        "queue_wait_s": None if submit_s is None else max(0.0, end_s - elapsed_s - submit_s),
        "elapsed_s": elapsed_s,
        "nodes": given.get("node") or int(line["NNodes"] or 0),
        "node_list": node_list or None,
        "gpus": given.get("gres/gpu", sum(typed) if typed else None),  # the untyped count includes those of each type
    }
    return Accounted(line["JobName"], end_s, figures)


# --- What a job did when, from its own files.


@dataclass(frozen=True)
class RunStart:
    """One start of a run's script, as its files tell of it."""

    directory: RunDirectory
    run: RunFile
    record: Record
    ended: RunEnd | None = None  # None: it ended with its job
    progress: Progress | None = None  # of rank 0, the last one

    @classmethod
    def read(cls, records: RunRecords, directory: RunDirectory, run: RunFile) -> RunStart:
        """Read it. Raises OSError or ValueError."""
        record, ended = records.stored_or_assembled(directory), of_run_if_there(run, RunEnd, directory.ended)
        return cls(directory, run, record, ended, readable(Progress, directory.progress))

    @cached_property
    def raw(self) -> RawRun:
        """Read its raw files. Raises OSError or ValueError for run.json alone."""
        return read_raw_run(self.directory)

    @property
    def steps(self) -> int | None:
        """Return how many steps its ranks made; None if they are not known, or only its log tells of them.

        Of ranks that were killed the progress tells, which is there from the first step on.
        """
        record, run, content = self.record, self.run, RawContent(self.directory)
        steps = max((rank.steps for rank in record.ranks), default=None)
        if steps is not None or not record.spec.instrument or record.spec.throughput_regex is not None:
            return None if steps == 0 and record.throughput is not None else steps
        files = ((f"metrics{rank}.jsonl", agent) for agent in run.all_agents for rank in run.ranks_of(agent))
        is_reported = any(content.has(self.directory.ranks / name, agent) for name, agent in files)
        return self.progress.step if self.progress else None if is_reported else 0  # by the program itself

    def is_of(self, file: JobFile, end_s: float) -> bool:
        """Return True if a job made it. Several starts in one allocation have the same job id, and differ in times."""
        if self.run.link is not None:
            return self.run.link == file.number
        at_s = self.ended.started_at_s if self.ended else self.progress.updated_at_s if self.progress else math.inf
        return file.had_at(at_s, end_s)

    def owners_s(self, wall_s: float, end_s: float) -> Mapping[str, float]:
        """Return whose its seconds are; empty: not known. wall_s: what it took. end_s: unix time of its end."""
        record, progress = self.record, self.progress
        if record.owners_s:
            return record.owners_s
        if record.timing:
            startup_s = record.timing.startup_s or 0.0  # a program that reports its own steps does not tell
            return {STARTUP: startup_s, NOT_TOLD_APART: wall_s - startup_s}
        if progress:
            loop_s = min(progress.elapsed_s, wall_s)
            after_s = min(max(0.0, end_s - progress.updated_at_s), wall_s - loop_s)
            return {STARTUP: wall_s - loop_s - after_s, NOT_TOLD_APART: loop_s, END: after_s}
        return {STARTUP: wall_s} if self.steps == 0 else {}

    def share(self, wall_s: float, end_s: float) -> RunShare:
        """Return what it has of its job's time."""
        samples = sum(rank.samples for rank in self.record.ranks) or None
        return RunShare(self.record.spec.name, self.owners_s(wall_s, end_s), samples)


Begun = Sequence[tuple[RunDirectory, RunFile]]
"""The runs that were begun at a scale, each start of their scripts."""


def begun_at(results: Path, scale: str, after: int = 0) -> Begun:
    """Return the starts of all runs of a scale, oldest first. after: the attempts up to this one are left out."""
    found = []
    for path in sorted((results / "runs").glob(f"*/*/{scale}/r*")):
        earlier = sorted(int(each.name) for each in path.glob("attempts/*") if each.name.isdecimal())
        paths = [path / "attempts" / str(number) for number in earlier if number > after]
        for directory in map(RunDirectory, (*paths, path)):
            with suppress(OSError, ValueError):
                found.append((directory, read_run_file(directory)))
    return [(directory, run) for directory, run in found if run.job.attempt > after]


def _witness_runs_s(results: Path, file: JobFile, end_s: float) -> Iterator[float]:
    """Yield the seconds of each witness run that a job made."""
    for path in results.glob(f"{place_of('*')}/runs/*/*/{file.scale}/r*/ended.json"):
        ended = readable(RunEnd, path)
        if ended and ended.job.id == file.job_id and file.had_at(ended.started_at_s, end_s):
            yield ended.wall_s


def starts_of(records: RunRecords, begun: Begun, file: JobFile, end_s: float) -> list[RunStart]:
    """Return the starts of a job, oldest first. end_s: its end, by its own clock."""
    found = []
    for directory, run in begun:
        if run.job.id == file.job_id:
            with suppress(OSError, ValueError):
                found.append(RunStart.read(records, directory, run))
    return [start for start in found if start.is_of(file, end_s)]


Share = Callable[[RunStart, float, float], RunShare]


def ledger_of(
    results: Path, file: JobFile, starts: Sequence[RunStart], held: tuple[float, int], share: Share = RunStart.share
) -> Ledger:
    """Return the ledger of a job. held: for how long, and how many GPUs. share: of a start, as ``RunStart.share``."""
    elapsed_s, gpus = held
    preflight_s, end_s = file.row.preflight_s if file.row else 0.0, file.begun_at_s + elapsed_s
    with suppress(OSError, ValueError):
        preflight = result_of(results, file.scale)
        if preflight and preflight.job.id == file.job_id and file.had_at(preflight.started_at_s, end_s):
            preflight_s = preflight.took_s
    followed_s = math.fsum(_witness_runs_s(results, file, end_s))
    left_s = elapsed_s - preflight_s - followed_s - math.fsum(start.ended.wall_s for start in starts if start.ended)
    ends = [(e.wall_s, e.ended_at_s) if (e := start.ended) else (max(0.0, left_s), end_s) for start in starts]
    shares = [share(start, *end) for start, end in zip(starts, ends, strict=True)]
    shares += [RunShare("", {WITNESS: followed_s})] if followed_s else []
    return Ledger.of_job(file.job_id, elapsed_s, (gpus, file.gpus), preflight_s, shares)


# --- The rows.


def update(results: Path) -> tuple[JobRow, ...]:
    """Write the rows of jobs that have ended since, and return all rows, by the times of their ends.

    A row without sacct's figures is completed as soon as it has them. Raises OSError (NotWritten).
    """
    bad = {node.job: node.node for node in bad_nodes(results)}
    due = {path: file for path, file in job_files(results) if file.row is None or _may_be_completed(file, bad)}
    accounted = ask_sacct([file.slurm_id for file in due.values() if file.slurm_id])
    for path, file in due.items():
        slurm = accounted.get(file.slurm_id or "")
        row = file.row
        # In results that were copied, the id may be that of another cluster's job.
        if slurm and scale_of_name(slurm.name) == file.scale and file.begun_at_s <= slurm.end_s + CLOCKS_S:
            row = _row(results, path.stem, file, slurm.figures, slurm.end_s)
        elif file.ended_at_s is not None and row is None:
            row = _row(results, path.stem, file, _own_figures(file, file.ended_at_s), file.ended_at_s)
        if row is not None and file.job_id in bad:
            row = row.replace(bad_node=bad[file.job_id])
        if row is not file.row:
            write_json(path, file.replace(row=row).model_dump())
    rows = read_rows(results)
    if rows:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(JobRow.model_fields)
        for row in rows:
            writer.writerow(f"{value:.{SIGNIFICANT}g}" if isinstance(value, float) else value for _, value in row)
        write_atomically(accounting_file(results), out.getvalue())
    return rows


def _may_be_completed(file: JobFile, bad: Mapping[str, str]) -> bool:
    """Return True if sacct may know more of a job with a row, or its bad node was listed since. bad: nodes, by job."""
    if file.slurm_id is None or file.row is None:
        return False
    return file.row.source == "none" or (file.row.bad_node is None and file.job_id in bad)


def _own_figures(file: JobFile, end_s: float) -> dict[str, Any]:
    return {
        "source": "none",
        "state": "ENDED",
        "started_at": _utc(file.begun_at_s),
        "ended_at": _utc(end_s),
        "elapsed_s": max(0.0, end_s - file.begun_at_s),
        "nodes": file.nodes,
        "gpus": file.gpus_allocated,
    }


def _row(results: Path, name: str, file: JobFile, known: Mapping[str, Any], end_s: float) -> JobRow:
    """Return the row of a job that is over. name: of its file. known: sacct's figures, or its own."""
    end_s = file.ended_at_s or end_s
    gpus = known["gpus"] or file.gpus_allocated or file.gpus
    starts = starts_of(RunRecords(results), begun_at(results, file.scale), file, end_s)
    ledger = ledger_of(results, file, starts, (known["elapsed_s"], gpus))
    same = {key: getattr(file, key) for key in ("kind", "stage", "scale", "specs", "runs_planned")}
    counted = [start for start in starts if start.ended and not start.record.spec.is_plain]
    training_s = ledger.seconds(*TRAINING)
    return JobRow(
        job_id=name,
        gpus_used=file.gpus,
        **{**same, **known, "gpus": gpus},
        runs_measured=sum(start.ended is not None and start.ended.outcome == "finished" for start in counted),
        runs_ok=sum(start.record.status == "ok" for start in counted),
        preflight_s=ledger.seconds(PREFLIGHT),
        startup_s=ledger.seconds(STARTUP),
        training_s=training_s,
        launcher_s=ledger.seconds(LAUNCHER),
        end_s=ledger.seconds(END, PROFILE),
        gpu_hours_held=ledger.gpu_hours(*ALL_OWNERS),
        gpu_hours_training=training_s * file.gpus / HOUR_S,
    )


def _utc(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- The table.


def update_or_warn(results: Path) -> tuple[tuple[JobRow, ...], tuple[str, ...]]:
    """Update, and return all rows, with warnings of what is not read or written: nothing else shall wait for them."""
    missing = tuple(_missing(results))
    try:
        return update(results), missing
    except NotWritten as error:
        return read_rows(results), (*missing, f"{error.filename} cannot be written: {error.strerror}")


def read_rows(results: Path) -> tuple[JobRow, ...]:
    """Return the rows of the jobs that are known to be over, by the times of their ends."""
    rows = (file.row for _, file in job_files(results) if file.row is not None)
    return tuple(sorted(rows, key=lambda row: (row.ended_at, row.job_id)))


def accounting_file(results: Path) -> Path:
    """Return the path of the table."""
    return results / "accounting.csv"


# --- Time limits that are far too long, or nearly used up, with the value to set; and the accounting for people. Pure.
#
# Only jobs count that ran every planned run of their scale well, as the plan has them now: the rest shows no need. What
# is asked is what the plan asks, so advice that was followed is not given again.


MARGIN = 1.5  # asked / used: a slow node or a busy file system needs more time
TOO_LARGE = 2.0  # asked / what would be asked with its margin; below, the saving is not worth a change
NEARLY_USED = 0.9
LEAST_SAVED_MIN = 15  # a shorter time limit lets a job start in gaps of the queue, if they are shorter by this
LEAST_RUNTIME_MIN, RUNTIME_STEP_MIN = 10, 5
OR_LESS_TIME = "if the partition allows it; otherwise fewer steps: measure.max_steps"


def advice(plan: Plan, rows: Sequence[JobRow]) -> list[str]:
    """Return what to change: ``time: 1x1 asked 240 min, took 12 min: stages.stage1.runtime: 20 in config.yaml``."""
    return [change for stage in plan.stages for change in _runtime(plan.stage_jobs(stage), rows)]


def whole_rows(job: ScaleJob, rows: Sequence[JobRow]) -> list[JobRow]:
    """Return the rows of a scale's own Slurm jobs that measured all its runs well, as the plan has them now.

    A job that kept some runs of an earlier one took less time.
    """
    wanted = (str(job.scale), specs_digest(job), "measure", ENDED_WELL)
    good = [row for row in rows if (row.scale, row.specs, row.kind, row.state) == wanted and row.runs_ok > 0]
    return [row for row in good if row.runs_ok == row.runs_measured >= row.runs_planned == runs_of(job)]


def _runtime(jobs: Sequence[ScaleJob], rows: Sequence[JobRow]) -> Iterator[str]:
    """Yield the change of a stage's runtime, which all its jobs ask for."""
    of_stage = [(job, whole_rows(job, rows)) for job in jobs]
    longest = [(max(row.elapsed_s for row in rows) / 60, job) for job, rows in of_stage if rows]
    if not longest:
        return
    took_min, job = max(longest, key=itemgetter(0))
    value, asked_min = runtime_for(took_min), job.runtime_min
    # For more repeats a job would have used more time; a scale that was not measured may need more.
    may_need_more = any(job.is_adaptive for job, _ in of_stage) or len(longest) < len(of_stage)
    is_too_large = not may_need_more and asked_min >= max(TOO_LARGE * value, value + LEAST_SAVED_MIN)
    if took_min > NEARLY_USED * asked_min or is_too_large:
        took = f"time: {job.scale} asked {asked_min} min, took {duration(60 * took_min)}"
        yield f"{took}: stages.{job.stage}.runtime: {value} in config.yaml"


def runtime_for(longest_min: float) -> int:
    """Return the runtime to ask for, in minutes, if the longest job takes or will take ``longest_min``."""
    return math.ceil(max(MARGIN * longest_min, LEAST_RUNTIME_MIN) / RUNTIME_STEP_MIN) * RUNTIME_STEP_MIN


# --- For people.


def totals(rows: Sequence[JobRow], unit: HourUnit) -> str:
    """Return the hours of all jobs: ``3 jobs held 4.20 GPU h, of which 3.10 GPU h in training``."""
    held = (Hours(row.gpu_hours_held, row.elapsed_s * row.nodes / HOUR_S) for row in rows)
    training = (Hours(row.gpu_hours_training, row.training_s * row.nodes / HOUR_S) for row in rows)
    of_all, in_training = (unit.in_words(sum(costs, Hours())) for costs in (held, training))
    return f"{count(len(rows), 'job')} held {of_all}, of which {in_training} in training"


def terminal_lines(plan: Plan, rows: Sequence[JobRow], results: Path) -> list[str]:
    """Return the lines below the final table; none without a job."""
    if not rows:
        return []
    lines = [f"used     {totals(rows, plan.hour_unit)}; {accounting_file(results)}"]
    lines += [f"request  {change}" for change in advice(plan, rows)]
    return [part for line in lines for part in textwrap.wrap(line, columns(), subsequent_indent=" " * 9)]
