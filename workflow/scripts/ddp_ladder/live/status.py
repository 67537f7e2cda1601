"""What goes on in a ladder at one time: one reader of its results and of squeue. It writes nothing.

A file is read again only if it has changed, and a run whose record is there is not looked at again.
"""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

from ddp_ladder.common.files import RunDirectory, read_json
from ddp_ladder.common.messages import UserError
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.gates.verdict import Verdict, gate_files
from ddp_ladder.plan.file import read_plan
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob
from ddp_ladder.preflight.result import PreflightResult, read_result, result_file
from ddp_ladder.records.assemble import assemble
from ddp_ladder.records.raw_models import RunFile, read_run_file
from ddp_ladder.records.record import Record, read_record
from ddp_ladder.run.expected_steps import Expected, most_alike
from ddp_ladder.run.progress import epoch_steps, read_progress
from ddp_ladder.run.scale_job import limits_s
from ddp_ladder.slurm.allocation import parse_time_left
from ddp_ladder.slurm.jobs import SUBMITTED, JobEnd, JobState, job_end_file, job_state, read_job_end
from ddp_ladder.slurm.lock import START, Holder, newest_lock, read_lock
from ddp_ladder.slurm.query import SlurmError, squeue, unknown

DEAD_AFTER_S = 120.0  # a lock is touched every few seconds; clocks differ, and network file systems cache
ASK_EVERY_S = 10.0
SILENT_EVERY_S = 60.0  # after a question to Slurm without an answer
ANSWER_WITHIN_S = 10.0
NO_COMMAND = "squeue is not on this machine: the states of the jobs are not shown"
TAIL_BYTES = 8192  # of a file of samples: more than one line, also of a node with eight GPUs
GPU_FIGURES = ("busy_fraction", "memory_used_bytes", "power_w")

T = TypeVar("T")
RunPhase = Literal["to do", "interrupted", "started", "ended"]


@dataclass(frozen=True)
class NodeSample:
    """The last sample of a node, unix time by its own clock. gpus: the known values of its GPUs, by column."""

    node: str
    time_s: float
    cpu_fraction: float | None
    cpu_busiest_fraction: float | None
    gpus: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class RunState:
    """One planned run. record: None while it is not known. progress, expected, samples: of a run that goes on.

    An interrupted one was started by a job that no longer holds its scale.
    """

    spec: RunSpec
    phase: RunPhase = "to do"
    record: Record | None = None
    file: RunFile | None = None
    expected: Expected | None = None
    progress: Mapping[str, Any] | None = None
    samples: tuple[NodeSample, ...] = ()

    @property
    def has_failed(self) -> bool:
        return self.record is not None and self.record.failure is not None


@dataclass(frozen=True)
class ScaleState:
    """One scale. end: what is recorded of its Slurm job; None without one, and after a good end.

    holder: the job that holds the scale; is_alive: whether that is known to go on, None if it cannot be seen.
    """

    job: ScaleJob
    runs: tuple[RunState, ...]
    end: JobEnd | None = None
    holder: Holder | None = None
    is_alive: bool | None = None
    preflight: PreflightResult | None = None

    @property
    def name(self) -> str:
        return str(self.job.scale)

    @property
    def ended(self) -> tuple[RunState, ...]:
        return tuple(run for run in self.runs if run.phase == "ended")

    @property
    def is_done(self) -> bool:
        return len(self.ended) == len(self.runs)

    @property
    def is_held(self) -> bool:
        """Return True if a job holds it, as far as can be seen."""
        return self.holder is not None and not self.holder.ended and self.is_alive is not False

    @property
    def slurm_id(self) -> str | None:
        """The Slurm job whose state is worth asking for; None if there is none, or its end is known."""
        if self.end is not None and self.end.state == SUBMITTED:
            return self.end.job_id
        return self.holder.slurm_id if self.holder is not None and not self.holder.ended else None

    @property
    def bad_end(self) -> JobEnd | None:
        """The bad end of its job that is recorded, if nothing goes on."""
        known = self.end is not None and not self.end.ok and self.end.state not in (SUBMITTED, "")
        return self.end if known and not self.is_held and not self.is_done else None

    @property
    def running(self) -> RunState | None:
        """The run that its job executes now."""
        return next((run for run in self.runs if run.phase == "started"), None) if self.is_held else None


@dataclass(frozen=True)
class QueuedJob:
    """A job as squeue shows it; times in seconds, None if Slurm gives none."""

    state: JobState
    elapsed_s: float | None
    limit_s: float | None


@dataclass(frozen=True)
class SlurmAnswer:
    """Slurm's last answer on all jobs, at asked_s (unix time). problem: why there is none, or no newer one."""

    jobs: Mapping[str, QueuedJob] = field(default_factory=dict)
    asked_s: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class LadderState:
    """A results directory at one time (unix time).

    start: the start that is at work, or was killed; is_alive: whether its process runs, None if that cannot be seen
    from here. last: the last start that has ended. problems: files that cannot be read.
    """

    results: Path
    now_s: float
    plan: Plan | None = None
    start: Holder | None = None
    is_alive: bool | None = None
    last: Holder | None = None
    scales: tuple[ScaleState, ...] = ()
    gates: Mapping[str, Verdict] = field(default_factory=dict)
    points: tuple[ScalePoint, ...] = ()
    problems: tuple[str, ...] = ()
    slurm: SlurmAnswer = SlurmAnswer()
    has_report: bool = False

    def job_of(self, scale: ScaleState) -> QueuedJob | None:
        """Return what Slurm says of a scale's job."""
        return None if scale.slurm_id is None else self.slurm.jobs.get(scale.slurm_id)

    @property
    def is_at_work(self) -> bool:
        """Return True while a start, or a job that one has left, goes on as far as can be seen."""
        has_start = self.start is not None and self.is_alive is not False
        queued = any((job := self.job_of(scale)) and job.state.phase != "ended" for scale in self.scales)
        return has_start or queued or any(scale.is_held for scale in self.scales)

    @property
    def slurm_ids(self) -> frozenset[str]:
        """The Slurm jobs whose states are worth asking for."""
        return frozenset(scale.slurm_id for scale in self.scales if scale.slurm_id is not None)

    @property
    def is_over(self) -> bool:
        """Return True if nothing goes on: no start, and no job; while Slurm has not answered, that is unknown."""
        is_known = not self.slurm_ids or (self.slurm.asked_s is not None and not self.slurm.problem)
        return self.plan is not None and is_known and not self.is_at_work

    def left_at_most_s(self, scale: ScaleState) -> float | None:
        """Return the time until the job that holds a scale ends its runs, as the job itself counts it."""
        if scale.holder is None:
            return None
        job, slurm_s = self.job_of(scale), None  # what Slurm left the job when it took the scale
        if job is not None and job.limit_s is not None and job.elapsed_s is not None and self.slurm.asked_s is not None:
            slurm_s = job.limit_s - job.elapsed_s + self.slurm.asked_s - scale.holder.since_s
        runs_s, _ = limits_s(60.0 * scale.job.runtime_min, slurm_s)
        return max(0.0, runs_s - (self.now_s - scale.holder.since_s))


class Reader:
    """The reader of one results directory. ``read`` may be called at any rate."""

    def __init__(self, results: Path) -> None:
        self._results = results
        self._read: dict[Path, tuple[tuple[int, int, int], Any]] = {}  # by path: inode, size, time of change in ns
        self._problems: dict[Path, str] = {}  # why a file that exists could not be read
        self._plan: Plan | None = None
        self._settled: dict[str, RunState] = {}  # runs whose records are there, by name
        self._assembled: dict[str, Record | None] = {}  # by run_id; None: the raw files give none
        self._expected: dict[str, Expected] = {}
        self._points: tuple[list[int], tuple[ScalePoint, ...]] = ([], ())

    def read(self) -> LadderState:
        """Read what may have changed."""
        now_s = time.time()
        plan = self._parsed(self._results / "plan.json", read_plan)
        if plan is not self._plan:
            self._plan, self._settled = plan, {}
        lock = newest_lock(self._names(self._results), START)
        held = None if lock is None else self._parsed(self._results / lock, read_lock)
        last = held[0] if held else None
        start = None if last is None or last.ended else last
        names = self._names(self._results / "jobs")
        scales = tuple(self._scale(job, names, now_s) for job in (() if plan is None else plan.jobs))
        records = [run.record for scale in scales for run in scale.runs if run.record is not None]
        scales = tuple(self._followed(scale, records) for scale in scales)
        return LadderState(
            results=self._results,
            now_s=now_s,
            plan=plan,
            start=start,
            is_alive=None if start is None else start.process.is_alive(),
            last=last,
            scales=scales,
            gates=self._gates(scales),
            points=self._scale_points(scales, records),
            problems=tuple(self._problems.values()),
            has_report=start is None and (self._results / "report/index.html").exists(),
        )

    def _scale(self, job: ScaleJob, names: Collection[str], now_s: float) -> ScaleState:
        scale, jobs = str(job.scale), self._results / "jobs"
        end_file, newest = job_end_file(self._results, scale), newest_lock(names, scale)
        end = self._parsed(end_file, lambda _: read_job_end(self._results, scale)) if end_file.name in names else None
        found = self._parsed(jobs / newest, read_lock) if newest else None
        holder, alive = None, None
        if found is not None:
            holder, alive = found[0], found[0].process.is_alive()
            if alive is None and now_s - found[1] > DEAD_AFTER_S:
                alive = False
        further = [run for spec in job.more if (run := self._run(spec, holder)).phase != "to do"]
        runs = (*(self._run(spec, holder) for spec in job.runs), *further)
        preflight = None
        if job.preflight.enabled:
            preflight = self._parsed(result_file(self._results, job.scale), read_result)
        return ScaleState(job, runs, end, holder, alive, preflight)

    def _run(self, spec: RunSpec, holder: Holder | None) -> RunState:
        if spec.name in self._settled and (holder is None or holder.ended):  # a job may measure it again
            return self._settled[spec.name]
        directory = self._directory(spec)
        names = self._names(directory.path)
        if directory.record.name in names:
            record = self._parsed(directory.record, read_record)
            if record is not None and record.spec_hash == spec.hash:
                self._settled[spec.name] = RunState(spec, "ended", record)
                return self._settled[spec.name]
        run = self._parsed(directory.run, lambda _: read_run_file(directory)) if directory.run.name in names else None
        if run is None or run.spec_hash != spec.hash:
            return RunState(spec)
        if directory.ended.name in names:
            return RunState(spec, "ended", self._assembled_record(directory, run))
        is_own = holder is not None and not holder.ended and holder.job_id == run.job.id
        return RunState(spec, "started" if is_own else "interrupted", file=run)

    def _assembled_record(self, directory: RunDirectory, run: RunFile) -> Record | None:
        """Return the record of an ended run whose job has not written it yet; None if its raw files give none."""
        if run.job.run_id not in self._assembled:
            try:
                self._assembled[run.job.run_id] = assemble(directory)
            except (OSError, ValueError):
                self._assembled[run.job.run_id] = None
        return self._assembled[run.job.run_id]

    def _followed(self, scale: ScaleState, records: Collection[Record]) -> ScaleState:
        """Return a scale with the progress of the run that goes on. records: show how many steps it will make."""
        run = scale.running
        if run is None or run.file is None:
            return scale
        directory = self._directory(run.spec)
        samples = []
        for node_rank, node in enumerate(run.file.nodes):
            sample = self._opened(directory.samples(node_rank), partial(last_sample, node=node))
            samples += [sample] if sample else []
        progress = self._parsed(directory.progress, read_progress)
        expected = self._steps_of(run.spec, [record for record in records if record.status == "ok"])
        now = replace(run, progress=progress, expected=expected, samples=tuple(samples))
        return replace(scale, runs=tuple(now if each is run else each for each in scale.runs))

    def _steps_of(self, spec: RunSpec, finished: Collection[Record]) -> Expected:
        other, known = most_alike(spec, finished), self._expected.get(spec.name)
        if known is None or known.other is not other:
            epoch = None if other is None else epoch_steps(self._directory(other.spec))
            known = self._expected[spec.name] = Expected(spec, other, epoch)
        return known

    def _gates(self, scales: Collection[ScaleState]) -> dict[str, Verdict]:
        """Return the gates of stages whose runs have all ended; others are of earlier runs."""
        found = {}
        for stage in () if self._plan is None else self._plan.stages:
            if all(scale.is_done for scale in scales if scale.job.stage == stage):
                for file in gate_files(self._results / "gates", stage):
                    verdict = self._parsed(file, lambda path: Verdict.from_json(read_json(path)))
                    if verdict is not None:
                        found[stage] = verdict
        return found

    def _scale_points(self, scales: Collection[ScaleState], records: Collection[Record]) -> tuple[ScalePoint, ...]:
        """Return the points of the scaling, made again when there is another record."""
        known = [id(record) for record in records]
        if self._plan is not None and self._points[0] != known:
            by_name = {record.spec.name: record for record in records}
            specs = [run.spec for scale in scales for run in scale.runs]
            self._points = known, scale_points(specs, by_name, self._plan.may_differ, self._plan.gates)
        return self._points[1]

    def _directory(self, spec: RunSpec) -> RunDirectory:
        return RunDirectory(self._results / "runs" / spec.name)

    def _names(self, directory: Path) -> frozenset[str]:
        """Return the names in a directory; empty if it is missing or cannot be read."""
        self._problems.pop(directory, None)
        try:
            return frozenset(os.listdir(directory))
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            self._problems[directory] = f"{directory} cannot be read: {error.strerror}"
            return frozenset()

    def _parsed(self, path: Path, parse: Callable[[Path], T]) -> T | None:
        """Return what ``parse`` makes of the file, None if there is none. As ``_opened``."""
        return self._opened(path, lambda _: parse(path))

    def _opened(self, path: Path, parse: Callable[[BinaryIO], T]) -> T | None:
        """Return what ``parse`` makes of the open file, None if there is none.

        A file that cannot be parsed is noted, and what was read before still counts: some are not replaced atomically.
        """
        known: tuple[tuple[int, int, int], T] | None = self._read.get(path)
        self._problems.pop(path, None)
        try:
            with path.open("rb") as file:  # opening makes a network file system look for a new version
                now = os.fstat(file.fileno())
                version = (now.st_ino, now.st_size, now.st_mtime_ns)
                if known is None or known[0] != version:
                    known = self._read[path] = (version, parse(file))
        except FileNotFoundError:
            self._read.pop(path, None)
            return None
        except OSError as error:
            self._problems[path] = f"{path} cannot be read: {error.strerror}"
        except (ValueError, UserError) as error:
            text = " ".join(str(error).split())
            self._problems[path] = text if text.startswith(str(path)) else f"{path}: {text}"
        return None if known is None else known[1]


def last_sample(file: BinaryIO, node: str) -> NodeSample | None:
    """Return the last complete line of a node's samples; None before the first one.

    Raises OSError, or ValueError for another file.
    """
    header = file.readline()
    begin = max(len(header), os.fstat(file.fileno()).st_size - TAIL_BYTES)
    file.seek(begin)
    *lines, _ = file.read().split(b"\n")  # the last line is being written, or empty
    if begin > len(header):
        lines = lines[1:]  # the first one is cut
    if not lines or not header.endswith(b"\n"):
        return None
    names, cells = (line.decode().rstrip("\r\n").split(",") for line in (header, lines[-1]))
    if len(cells) != len(names) or names[0] != "time_s" or not cells[0]:
        raise ValueError("it has no samples of a node")
    figures = {name: float(cell) for name, cell in zip(names, cells, strict=True) if cell and _is_read(name)}
    known = {name: value for name, value in figures.items() if math.isfinite(value)}
    gpus = {column: tuple(value for name, value in known.items() if name.endswith(column)) for column in GPU_FIGURES}
    return NodeSample(node, known["time_s"], known.get("cpu_fraction"), known.get("cpu_busiest_fraction"), gpus)


def _is_read(name: str) -> bool:
    own = ("time_s", "cpu_fraction", "cpu_busiest_fraction")
    return name in own or (name.startswith("gpu") and name.partition("_")[2] in GPU_FIGURES)


class SlurmJobs:
    """Slurm's answers: one squeue for all jobs, in a thread of its own, at most every ASK_EVERY_S.

    Jobs are asked for by their ids, so they may be anyone's. The accounting is not asked.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_s = 0.0
        self._question: threading.Thread | None = None
        self._answer = SlurmAnswer()

    def look(self, job_ids: Collection[str]) -> SlurmAnswer:
        """Return the last answer at once, and ask for the next one if that is due."""
        if not job_ids:
            return SlurmAnswer()
        if shutil.which("squeue") is None:
            return SlurmAnswer(problem=NO_COMMAND)
        is_asking = self._question is not None and self._question.is_alive()
        if not is_asking and self._clock() >= self._due_s:
            self._due_s = self._clock() + ASK_EVERY_S
            self._question = threading.Thread(target=self._ask, args=(frozenset(job_ids),), daemon=True)
            self._question.start()
        return self._answer

    def wait(self) -> None:
        """Wait for the question that is under way; it has a time limit."""
        if self._question is not None:
            self._question.join()

    def _ask(self, job_ids: Collection[str]) -> None:
        try:
            self._answer = SlurmAnswer(ask_squeue(job_ids), time.time())
        except SlurmError as error:
            self._due_s = self._clock() + SILENT_EVERY_S
            why = " ".join(str(error).split())
            problem = f"Slurm does not answer ({why}); asked again in {SILENT_EVERY_S:.0f} s"
            self._answer = replace(self._answer, problem=problem)


def ask_squeue(job_ids: Collection[str]) -> dict[str, QueuedJob]:
    """Return the jobs that the controller knows. Raises SlurmError if it does not answer."""
    try:
        rows = squeue("iTSNMlr", "--states=all", f"--jobs={','.join(sorted(job_ids))}", within_s=ANSWER_WITHIN_S)
    except SlurmError as error:
        if unknown(str(error)):  # only if a single job was asked for
            return {}
        raise
    return {
        job.strip(): QueuedJob(job_state(state, start, nodes, reason), parse_time_left(spent), parse_time_left(limit))
        for job, state, start, nodes, spent, limit, reason in rows
    }
