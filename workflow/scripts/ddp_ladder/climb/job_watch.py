"""The watch over Slurm jobs: their states, and their lines, until they have ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ddp_ladder.common.files import NotWritten, check_room, file_text, opened
from ddp_ladder.common.formats import duration
from ddp_ladder.ledger.jobs import own_problem
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.preflight.result import without_bad_nodes
from ddp_ladder.run.progress import LAST_WORDS_OF, Console, progress_in
from ddp_ladder.slurm import jobs as slurm_jobs
from ddp_ladder.slurm.jobs import Advice, JobEnd, JobState, Submission
from ddp_ladder.slurm.lock import Held, Lock, look
from ddp_ladder.slurm.query import SlurmError, sbatch_options

# A job's own lines reach the terminal through its log file. After its last line the watch asks Slurm at once, so that
# the next stage starts without waiting for the next regular query.

LOOK_EVERY_S = 1.0  # at the logs; asks Slurm nothing
ASK_EVERY_S = {"waiting": 30.0, "running": 10.0}  # all users share the controller
ANSWERS_SOON_S = 0.5  # what a look waits for an answer
GONE_AFTER_S = 60.0  # a new job is not yet known everywhere, and accounting lags behind

Ask = Callable[[Iterable[str]], Mapping[str, JobState]]


@dataclass
class WatchedJob:
    """One scale's job, from its submission to its end."""

    id: str
    stage: str
    scale: str
    log: Path
    asked_min: int  # the time that it asked for
    held: Callable[[], Held | None]  # the scale's lock
    places: Sequence[Path] = ()  # the directories that it writes to
    problem: Callable[[], Advice | None] = lambda: None  # why it could not do its work, in its own words
    state: JobState = field(default_factory=lambda: JobState("PENDING"))
    submitted_s: float = 0.0
    started_s: float | None = None
    gone_since_s: float | None = None
    is_reported_alive: bool = False
    is_finished: bool = False  # its last words are in the log
    progress: str | None = None  # of the run that goes on, for the status line
    read_bytes: int = 0
    _rest: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, job: ScaleJob, job_id: str, log: Path, results: Path) -> WatchedJob:
        """Return the job of Slurm that makes a planned one."""
        scale, lock = str(job.scale), Lock.of_scale(results, str(job.scale), "")
        places, problem = (log.parent, results), partial(own_problem, results, scale, job_id)
        return cls(job_id, job.stage, scale, log, job.runtime_min, lambda: look(lock), places, problem)

    @property
    def label(self) -> str:
        return f"{self.stage} {self.scale}: job {self.id}"

    @property
    def is_held(self) -> bool:
        """Return True if the scale's lock has a living holder."""
        return (held := self.held()) is not None and held.is_alive

    @property
    def left_lock_on(self) -> str:
        """The host on which the job left its lock without releasing it; empty if it released it, or had none."""
        holder = held.holder if (held := self.held()) else None
        return holder.process.host if holder and holder.job_id == self.id and not holder.ended else ""

    def new_lines(self) -> list[str]:
        """Return what the job itself has printed since the last look, without Snakemake's lines in the same log."""
        try:
            with opened(self.log) as file:
                file.seek(self.read_bytes)
                new = file.read()
        except OSError:  # not started yet, not visible here yet, or the file system is unavailable for a while
            return []
        self.read_bytes += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        own = f"{self.stage} {self.scale}".encode()
        return [line.decode(errors="replace") for line in lines if line.startswith(own)]


def submission(job: ScaleJob, results: Path, logs: Path, chdir: str, command: str, earlier: str | None) -> Submission:
    """Return the call of sbatch for a planned job, without the nodes that it leaves out. logs: an absolute path."""
    scale = str(job.scale)
    own = {"job-name": slurm_jobs.new_job_name(results, scale), "chdir": chdir, "export": "ALL"}
    own["output"] = str(logs).replace("%", "%%") + "/%j.log"
    argv = ["sbatch", "--parsable", *sbatch_options(without_bad_nodes(job, results), own)]
    return Submission(f"{job.stage} {scale}", scale, own["job-name"], argv, f"#!/bin/sh\n{command}", earlier)


def _full(places: Sequence[Path]) -> Advice | None:
    """Return why nothing can be written in one of these directories; None if they take a file."""
    for place in places:
        try:
            check_room(place)
        except NotWritten as error:
            return Advice(f"{error.problem.where}: {error.problem.what}", error.problem.next or slurm_jobs.AGAIN)
    return None


def in_background(call: Ask, jobs: list[str]) -> Future[Mapping[str, JobState]]:
    """Return what will be the answer: Slurm may take a minute for it, and meanwhile the jobs print lines."""
    future: Future[Mapping[str, JobState]] = Future()

    def ask_slurm() -> None:
        try:
            future.set_result(call(jobs))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=ask_slurm, daemon=True).start()
    return future


class JobWatch:
    """The watch of the jobs of one start of the workflow. ``look`` may be called at any rate."""

    def __init__(self, ask: Ask, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._console = console
        self._clock = clock
        self._jobs: dict[str, WatchedJob] = {}
        self._asked_s: float | None = None
        self._ahead: set[str] = set()  # jobs whose logs say more than Slurm's last answer
        self._pause_s = 0.0  # to the next question about them
        self._answer: Future[Mapping[str, JobState]] | None = None
        self._is_silent = False

    def add(self, job: WatchedJob) -> None:
        """Begin to follow a job that was just submitted."""
        job.submitted_s = self._clock()
        self._jobs[job.id] = job
        self._asked_s = None  # it may start at once
        self._console.say(f"{job.label} submitted; its log: {job.log}")

    def knows(self, job_id: str) -> bool:
        return job_id in self._jobs

    def look(self) -> list[JobEnd]:
        """Print what is new; return the jobs that have ended since the last look."""
        for job in self._jobs.values():
            self._print_lines(job)
        if self._answer is None and self._is_due():
            self._asked_s, self._answer = self._clock(), in_background(self._ask, list(self._jobs))
        ends = [] if self._answer is None else self._heard(self._answer)
        self._console.status(", ".join(map(self._status, self._jobs.values())))
        return ends

    def _is_due(self) -> bool:
        if not self._jobs or self._asked_s is None:
            return bool(self._jobs)
        jobs = self._jobs.values()
        every_s = min(ASK_EVERY_S.get(job.state.phase, 0.0) for job in jobs)
        # A job that prints has started, and one that has printed its last words is about to end: Slurm is asked at
        # once, then after 1, 2, 4, ... seconds, because the epilog of a node may take minutes.
        ahead = {job.id for job in jobs if job.is_finished or (job.read_bytes > 0 and job.started_s is None)}
        self._pause_s = self._pause_s if ahead <= self._ahead else 0.0
        self._ahead = ahead
        is_due = self._clock() - self._asked_s >= (min(every_s, self._pause_s) if ahead else every_s)
        if ahead and is_due:
            self._pause_s = max(LOOK_EVERY_S, 2 * self._pause_s)
        return is_due

    def _heard(self, answer: Future[Mapping[str, JobState]]) -> list[JobEnd]:
        """Return the jobs that have ended by Slurm's answer; none while it is awaited."""
        try:
            states = answer.result(ANSWERS_SOON_S)
        except TimeoutError:
            return []
        except SlurmError as silent:
            self._answer = None
            if not self._is_silent:
                self._console.say(f"Slurm does not answer ({silent}); the jobs go on, and it will be asked again")
            self._is_silent = True
            return []
        self._answer = None
        if self._is_silent:
            self._console.say("Slurm answers again")
            self._is_silent = False
        known = [job for job in self._jobs.values() if job.id in states]
        return [end for job in known if (end := self._follow(job, states[job.id]))]

    def _follow(self, job: WatchedJob, new: JobState) -> JobEnd | None:
        if new.state == slurm_jobs.GONE and not self._is_gone(job):
            return None
        job.gone_since_s = None
        before = job.state
        start = before.start if before.phase == "running" else ""  # sacct is not asked for it
        job.state = new = replace(new, start=new.start or start)
        if new.phase == "waiting" and (new.reason, new.start) != (before.reason, before.start):
            why = f"waits: {slurm_jobs.reason_in_words(new.reason, job.id)}" if new.reason else "waits for its turn"
            expected = f"; Slurm expects it to start at {new.start.replace('T', ' ')}" if new.start else ""
            self._console.say(f"{job.label} {why}{expected}")
        if new.phase == "running" and job.started_s is None:
            job.started_s = self._clock()
            self._console.say(f"{job.label} runs on {new.nodes}")
        return self._end(job) if new.phase == "ended" else None

    def _is_gone(self, job: WatchedJob) -> bool:
        """Return True if Slurm has not known a job for long enough, and the job does not hold its scale."""
        job.gone_since_s = self._clock() if job.gone_since_s is None else job.gone_since_s
        if job.is_finished or self._clock() - job.gone_since_s < GONE_AFTER_S:
            return job.is_finished
        if job.is_held and not job.is_reported_alive:
            self._console.say(f"{job.label} is unknown to squeue and sacct, but holds its lock: it goes on")
            job.is_reported_alive = True
        return not job.is_held

    def _end(self, job: WatchedJob) -> JobEnd:
        self._print_lines(job)
        del self._jobs[job.id]
        ran_s, state = self._ran_s(job), job.state.state
        words = "".join(slurm_jobs.slurms_words(file_text(job.log) or "")[-1:])  # such as "Exceeded job memory limit"
        # Slurm has forgotten it or lost its node, but it had printed that all was done: the records will show it.
        well = state == slurm_jobs.ENDED_WELL or (state in (slurm_jobs.GONE, slurm_jobs.NODE_FAIL) and job.is_finished)
        asked = job.asked_min, job.left_lock_on
        cause = Advice("", "") if well else slurm_jobs.advice(job.state, words, job.stage, *asked)
        if not well and (own := job.problem()):
            cause = own
        elif not well and not words and (full := _full(job.places)):  # it could not say so: its log is there too
            cause = full
        named, reason = (job.id, job.stage, job.scale, state, str(job.log)), words or job.state.reason
        end = JobEnd(*named, ok=well, nodes=job.state.nodes, reason=reason, why=cause.why, next=cause.next)
        since_s = self._clock() - job.submitted_s
        told = f"; it ran {duration(ran_s)}" if ran_s is not None else f", {duration(since_s)} after its submission"
        self._console.say(f"{job.stage} {job.scale}: {end.in_words}{told}")
        return end

    def _ran_s(self, job: WatchedJob) -> float | None:
        """Return how long a job has run, by Slurm or else as it was seen here; None if it was not seen to run."""
        if job.state.phase != "waiting" and (by_slurm_s := job.state.since_start_s) is not None:
            return by_slurm_s
        return None if job.started_s is None else self._clock() - job.started_s

    def _print_lines(self, job: WatchedJob) -> None:
        for line in job.new_lines():
            job.is_finished = job.is_finished or line.endswith((*LAST_WORDS_OF.values(),))
            job.progress = progress_in(line) if self._console.is_terminal else None
            if job.progress is None:
                self._console.say(line)

    def _status(self, job: WatchedJob) -> str:
        ran_s = self._ran_s(job)
        if ran_s is None:
            waited = duration(self._clock() - job.submitted_s)
            return f"{job.scale} waits {waited}" + (f" ({job.state.reason})" if job.state.reason else "")
        return f"{job.scale} runs {duration(ran_s)} {job.progress or ''}".rstrip()
