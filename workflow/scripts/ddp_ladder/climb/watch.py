"""The watch over a ladder's Slurm jobs: shows why they wait and how far they are, and notices every end soon.

A job's own lines reach the terminal through its log file. After its last line the watch asks Slurm at once, so that the
next stage starts without waiting for the next regular query.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ddp_ladder.common.formats import duration
from ddp_ladder.run.progress import LAST_WORDS, LAST_WORDS_OF_PREFLIGHT, JobConsole
from ddp_ladder.slurm.job_end import JobEnd
from ddp_ladder.slurm.query import SlurmError
from ddp_ladder.slurm.states import ENDED_WELL, GONE, JobState, advice, reason_in_words, slurms_words

LOOK_EVERY_S = 1.0  # at the logs; asks Slurm nothing
ASK_EVERY_S = {"waiting": 30.0, "running": 10.0}  # all users share the controller
GONE_AFTER_S = 60.0  # without a sign of life; a new job is not yet known everywhere, and accounting lags behind
REMIND_EVERY_S = 600.0

Ask = Callable[[Iterable[str]], Mapping[str, JobState]]
Cancel = Callable[[Iterable[str]], str]  # returns the outcome in words


@dataclass
class WatchedJob:
    """One scale's job, from its submission to its end."""

    id: str
    stage: str
    scale: str
    log: Path
    signs: Callable[[], object]
    clock: Callable[[], float]
    state: JobState = field(default_factory=lambda: JobState("PENDING"))
    submitted_s: float = 0.0
    started_s: float | None = None
    gone_since_s: float | None = None
    last_signs: object = None
    is_reported_alive: bool = False
    is_finished: bool = False  # its last words are in the log
    read_bytes: int = 0
    _rest: bytes = field(default=b"", repr=False)

    @property
    def label(self) -> str:
        return f"{self.stage} {self.scale}: job {self.id}"

    @property
    def is_ahead_of_its_state(self) -> bool:
        return self.is_finished or (self.read_bytes > 0 and self.started_s is None)

    def new_lines(self) -> list[str]:
        """Return what the job itself has printed since the last look, without Snakemake's lines in the same log."""
        try:
            with self.log.open("rb") as file:
                file.seek(self.read_bytes)
                new = file.read()
        except OSError:  # not started yet, not visible here yet, or the file system is unavailable for a while
            return []
        self.read_bytes += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        own = f"{self.stage} {self.scale}".encode()
        return [line.decode(errors="replace") for line in lines if line.startswith(own)]

    def slurms_words(self) -> str:
        """Return Slurm's own last message in the log, such as ``Exceeded job memory limit``; empty if there is none."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return ""
        return next(iter(slurms_words(text)[-1:]), "")


class JobWatch:
    """The watch of the jobs of one start of the workflow. ``look`` may be called at any rate."""

    def __init__(
        self, ask: Ask, cancel: Cancel, console: JobConsole, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._cancel = cancel
        self._console = console
        self._clock = clock
        self._jobs: dict[str, WatchedJob] = {}
        self._asked_s: float | None = None
        self._silent_since_s: float | None = None
        self._reminded_s = 0.0

    def add(self, job_id: str, stage: str, scale: str, log: Path, signs: Callable[[], object]) -> None:
        """Begin to follow a job that was just submitted. signs: something that changes while it lives."""
        job = WatchedJob(job_id, stage, scale, log, signs, self._clock, submitted_s=self._clock())
        self._jobs[job_id] = job
        self._asked_s = None  # it may start at once
        self._console.say(f"{job.label} submitted; its log: {log}")

    def knows(self, job_id: str) -> bool:
        return job_id in self._jobs

    def cancel(self, others: Iterable[str]) -> None:
        """Cancel every job that is followed, and ``others``, which are not followed yet."""
        jobs = sorted({*self._jobs, *others}, key=int)
        if jobs:
            self._console.say(self._cancel(jobs))

    def look(self) -> list[JobEnd]:
        """Print what is new; return the jobs that have ended since the last look."""
        for job in self._jobs.values():
            self._print_lines(job)
        ends = self._ask_slurm() if self._is_due() else []
        self._console.status([self._status(job) for job in self._jobs.values()])
        return ends

    def _is_due(self) -> bool:
        if not self._jobs:
            return False
        # A job that prints has started, and one that has printed its last words is about to end.
        if self._asked_s is None or any(job.is_ahead_of_its_state for job in self._jobs.values()):
            return True
        every_s = min(ASK_EVERY_S.get(job.state.phase, 0.0) for job in self._jobs.values())
        return self._clock() - self._asked_s >= every_s

    def _ask_slurm(self) -> list[JobEnd]:
        self._asked_s = self._clock()
        try:
            states = self._ask(list(self._jobs))
        except SlurmError as silent:
            self._report_silence(str(silent))
            return []
        if self._silent_since_s is not None:
            self._console.say("Slurm answers again")
            self._silent_since_s = None
        return [end for job in list(self._jobs.values()) if (end := self._follow(job, states[job.id]))]

    def _report_silence(self, why: str) -> None:
        now_s = self._clock()
        if self._silent_since_s is None:
            self._silent_since_s = self._reminded_s = now_s
            self._console.say(f"Slurm does not answer ({why}); the jobs go on, and it will be asked again")
        elif now_s - self._reminded_s >= REMIND_EVERY_S:
            self._reminded_s = now_s
            self._console.say(f"Slurm has not answered for {duration(now_s - self._silent_since_s)}; still asking")

    def _follow(self, job: WatchedJob, new: JobState) -> JobEnd | None:
        if new.state == GONE and not self._is_gone(job):
            return None
        job.gone_since_s = None
        before, job.state = job.state, new
        if new.phase == "waiting" and (new.reason, new.start) != (before.reason, before.start):
            self._console.say(f"{job.label} {_waiting(job)}")
        if new.phase == "running" and job.started_s is None:
            job.started_s = self._clock()
            self._console.say(f"{job.label} runs on {new.nodes}")
        return self._end(job) if new.phase == "ended" else None

    def _is_gone(self, job: WatchedJob) -> bool:
        """Return True if a job that Slurm does not know has shown no sign of life for long enough."""
        now_s, signs = self._clock(), job.signs()
        if job.gone_since_s is None:
            job.gone_since_s = now_s
        elif signs != job.last_signs:
            if not job.is_reported_alive:
                self._console.say(f"{job.label} is unknown to squeue and sacct, but its files change: it goes on")
            job.gone_since_s, job.is_reported_alive = now_s, True
        job.last_signs = signs
        return job.is_finished or now_s - job.gone_since_s >= GONE_AFTER_S

    def _end(self, job: WatchedJob) -> JobEnd:
        self._print_lines(job)
        del self._jobs[job.id]
        ran_s = self._clock() - (job.started_s if job.started_s is not None else job.submitted_s)
        state, words = job.state.state, job.slurms_words()
        # Slurm has forgotten it, but it had printed that all was done: the records will show it.
        well = state == ENDED_WELL or (state == GONE and job.is_finished)
        cause = advice(state, words, job.stage, job.state.dead)
        end = JobEnd(
            job_id=job.id,
            stage=job.stage,
            scale=job.scale,
            state=state,
            ok=well,
            nodes=job.state.nodes,
            reason=words or job.state.reason,
            why="" if well else cause.why,
            next="" if well else cause.next,
            log=str(job.log),
        )
        after = f"after {duration(ran_s)}"
        self._console.say(f"{job.stage} {job.scale}: {end.in_words}, {after}")
        return end

    def _print_lines(self, job: WatchedJob) -> None:
        for line in job.new_lines():
            job.is_finished = job.is_finished or line.endswith((LAST_WORDS, LAST_WORDS_OF_PREFLIGHT))
            self._console.say(line)

    def _status(self, job: WatchedJob) -> str:
        if job.started_s is None:
            waited = duration(self._clock() - job.submitted_s)
            return f"{job.scale} waits {waited}" + (f" ({job.state.reason})" if job.state.reason else "")
        return f"{job.scale} runs {duration(self._clock() - job.started_s)}"


def _waiting(job: WatchedJob) -> str:
    state = job.state
    why = f"waits: {reason_in_words(state.reason, job.id)}" if state.reason else "waits for its turn"
    return f"{why}; Slurm expects it to start at {state.start.replace('T', ' ')}" if state.start else why
