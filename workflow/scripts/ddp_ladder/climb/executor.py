"""The Slurm executor of the ladder's jobs, a subclass of the plugin's. What it replaces, and why: CONTRIBUTING."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from ddp_ladder.accounting.jobs import update_or_warn
from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.climb.start import check_before_submission
from ddp_ladder.common.files import NotWritten, check_room, file_text, opened, shown_path
from ddp_ladder.common.formats import duration
from ddp_ladder.common.messages import notify
from ddp_ladder.preflight import bad_nodes
from ddp_ladder.run.progress import LAST_WORDS_OF, Console, progress_in
from ddp_ladder.run.signs import SILENT_AFTER_S
from ddp_ladder.settings.terms import STAGES
from ddp_ladder.slurm import jobs as slurm_jobs
from ddp_ladder.slurm.jobs import Advice, JobEnd, JobState, NotSubmitted, Refused, Stopped, Submission, Submitter
from ddp_ladder.slurm.lock import Held, Lock, look
from ddp_ladder.slurm.query import SlurmError, host_names, set_aside
from ddp_ladder.slurm.steps import sbatch_options

MEASURES = tuple(f"measure_{stage}" for stage in STAGES)
RULES = (*MEASURES, "preflight_scale", "search_batch")  # whose jobs the ladder submits


def ladder_executor(plugin: type[Any], ladder: Ladder, rules: Mapping[str, str]) -> type[Any]:
    """Return a subclass of the plugin's executor for the jobs of these rules; the plugin handles those of other rules.

    rules: the ladder's name of each, by its name in the workflow that uses it.
    """
    return type("LadderExecutor", (LadderJobs, plugin), {"ladder": ladder, "rules": rules})


class LadderJobs:
    """The overriding methods. Every other method is the plugin's, the next base class."""

    ladder: ClassVar[Ladder]
    rules: ClassVar[Mapping[str, str]]

    def __init__(self, workflow: Any, logger: Any) -> None:
        if notice := set_aside(os.environ):
            notify(notice)
        # Before the plugin starts its thread, which would print an error if this start ended here.
        check_before_submission(self.ladder, [job for job in workflow.dag.needrun_jobs() if self._is_own(job)])
        self.results = Path(self.ladder.results)
        # As the last start's, so that a job that it has left makes the same runs. Asked before the plan is written.
        self._is_same_plan = not self.ladder.plan_to_write
        self._console = Console()
        self._watch = JobWatch(slurm_jobs.ask, self._console)
        self._submitter = Submitter(self.results, self._console.say)
        self._replaced: set[str] = set()  # scales that were submitted again, without a bad node
        super().__init__(workflow, logger)  # type: ignore[call-arg]

    def _is_own(self, job: Any) -> bool:
        return not job.is_group() and job.rule.name in self.rules

    def run_job(self: Any, job: Any) -> None:
        """Submit the job, in a thread of the plugin. Every outcome is reported, or Snakemake waits for ever."""
        if not self._is_own(job):
            super().run_job(job)  # type: ignore[misc]
            return
        info, scale = SubmittedJobInfo(job), job.wildcards.scale
        stage = self.ladder.job(scale).stage
        try:
            if self.rules[job.rule.name] in MEASURES and self.ladder.is_kept_after_search(scale):
                self._console.say(f"{stage} {scale}: every run is kept, so no job is submitted")
                self.report_job_success(info)
                return
            wanted, logs = self._submission(job)
            info.external_jobid = self._submitter.submit(wanted)
        except Stopped:
            return
        except NotSubmitted as error:
            why, then = str(error), error.next
            if isinstance(error, Refused) and (bad := bad_nodes.left_out(self.ladder.job(scale), self.results)):
                nodes, reasons = ", ".join(node.node for node in bad), "; ".join(node.in_words for node in bad)
                why = f"{reasons}; a job without {nodes} is refused: {why}"
                then = f"{bad_nodes.SUPPORT.format(file=bad_nodes.bad_nodes_file(self.results))}; or {then}"
            end = JobEnd("", stage, scale, slurm_jobs.NOT_SUBMITTED, "", why=why, next=then)
            self._console.say(f"{stage} {scale}: {end.in_words}")
            self.report_job_error(info, msg=_message(end, self.results))
            return
        except Exception as error:
            # Of the plugin or of a disk: it ends this job, and those that are in the queue are followed to their ends.
            self.report_job_error(info, msg=f"the job cannot be submitted: {error}")
            return
        log = logs / f"{info.external_jobid}.log"
        info.aux = {"slurm_logfile": log}
        submitted = JobEnd(info.external_jobid, stage, scale, slurm_jobs.SUBMITTED, shown_path(log))
        if lost := _not_recorded(submitted, self.results):  # Slurm knows it by its name
            self._console.say(f"job {info.external_jobid} is followed. {lost}")
        self.report_job_submission(info)

    def _submission(self: Any, job: Any) -> tuple[Submission, Path]:
        """Return the call of sbatch for a job of Snakemake, and the directory of its logs."""
        scale = job.wildcards.scale
        planned = self.ladder.job(scale)
        logs = self.slurm_logdir / f"rule_{job.name}" / scale
        logs.mkdir(parents=True, exist_ok=True)
        name = slurm_jobs.new_job_name(self.results, scale)
        own = {
            "job-name": name,
            "chdir": str(self.workflow.workdir_init),
            "output": str(logs).replace("%", "%%") + "/%j.log",
            "export": "ALL",
        }
        argv = ["sbatch", "--parsable", *sbatch_options(bad_nodes.without_bad_nodes(planned, self.results), own)]
        # In the job, the plugin's executor for job steps would only start one more Snakemake, which then runs the rule.
        command = self.format_job_exec(job).replace("--executor slurm-jobstep", "--executor local", 1)
        left = slurm_jobs.job_left(self.results, scale) if self._is_same_plan else None
        is_of_same_rule = left and left.log == shown_path(logs / f"{left.job_id}.log")
        earlier = left.job_id if left and is_of_same_rule else None
        return Submission(f"{planned.stage} {scale}", scale, name, argv, f"#!/bin/sh\n{command}", earlier), logs

    async def check_active_jobs(self: Any, active_jobs: Sequence[Any]) -> AsyncIterator[Any]:
        """Yield the jobs that have not ended, and report the others. Beside jobs of other rules it keeps their pace."""
        own = [info for info in active_jobs if self._is_own(info.job)]
        self.next_seconds_between_status_checks = LOOK_EVERY_S
        if others := [info for info in active_jobs if info not in own]:
            async for info in super().check_active_jobs(others):  # type: ignore[misc]
                yield info
        for info in own:
            self._follow(info)
        ends = {end.job_id: end for end in self._watch.look()}
        for info in own:
            if end := ends.get(info.external_jobid):
                self._submitter.over(end.job_id)
                self._report(info, end)
            else:
                yield info
        if ends:
            self._account()

    def _follow(self: Any, info: Any) -> None:
        if not self._watch.knows(info.external_jobid):
            scale, log = info.job.wildcards.scale, Path(shown_path(info.aux["slurm_logfile"]))
            lock, places = Lock.of_scale(self.results, scale, ""), (log.parent, self.results)
            planned = self.ladder.job(scale)
            named = info.external_jobid, planned.stage, scale, log, planned.runtime_min
            self._watch.add(WatchedJob(*named, lambda: look(lock), lambda: lock.touched_s, places))

    def _report(self: Any, info: Any, end: JobEnd) -> None:
        if end.ok:
            with contextlib.suppress(OSError):
                slurm_jobs.job_end_file(self.results, end.scale).unlink()
            if self._replaces_node(info, end):
                threading.Thread(target=self.run_job, args=(info.job,)).start()  # submission may take minutes
            else:
                self.report_job_success(info)
        else:
            self.report_job_error(info, msg=_message(end, self.results), aux_logs=[end.log])

    def _replaces_node(self: Any, info: Any, end: JobEnd) -> bool:
        """Return True, once for a scale, if its job measured nothing because of one bad node, which is listed then."""
        planned = self.ladder.job(end.scale)
        only_asks = self.rules[info.job.rule.name] == "preflight_scale"  # which node is bad
        if only_asks or not planned.slurm.replace_bad_node or end.scale in self._replaced:
            return False
        try:
            if (bad := bad_nodes.only_bad_node(self.results, planned, end.job_id, end.nodes)) is None:
                return False
            bad_nodes.add_bad_node(self.results, bad)
        except (OSError, ValueError) as error:
            self._console.say(f"{end.stage} {end.scale}: no node is replaced: {error}")
            return False
        self._replaced.add(end.scale)
        listed = f"it is listed for the site's support in {bad_nodes.bad_nodes_file(self.results)}"
        self._console.say(f"{end.stage} {end.scale}: {bad.in_words}; {listed}; submitting again without {bad.node}")
        return True

    def _account(self: Any) -> None:
        """Write what the jobs used. Slurm forgets them soon, and nothing that fails here may end the climb."""
        try:
            _, warnings = update_or_warn(self.results)
        except Exception as error:
            warnings = (f"the accounting of the jobs is incomplete: {error}",)
        for warning in warnings:
            self._console.say(f"warning: {warning}")

    def cancel_jobs(self: Any, active_jobs: Sequence[Any]) -> None:
        if submitted := self._submitter.stop():
            self._console.say(slurm_jobs.cancel(sorted(submitted, key=int)))
        if others := [info for info in active_jobs if not self._is_own(info.job)]:
            super().cancel_jobs(others)  # type: ignore[misc]


def _message(end: JobEnd, results: Path) -> str:
    recorded = _not_recorded(end, results) or f"Recorded in {slurm_jobs.job_end_file(results, end.scale)}"
    return f"{end.in_words}. Next: {end.next}. {recorded}. "


def _not_recorded(end: JobEnd, results: Path) -> str:
    """Write the end for the gate; return why it cannot be written, or nothing: a full disk does not stop a job."""
    try:
        slurm_jobs.write_job_end(results, end)
    except NotWritten as error:
        return f"Its end is not recorded: {error.filename} cannot be written: {error.strerror}"
    return ""


# The watch over the jobs. A job's own lines reach the terminal through its log file. After its last line the watch asks
# Slurm at once, so that the next stage starts without waiting for the next regular query.

LOOK_EVERY_S = 1.0  # at the logs; asks Slurm nothing
ASK_EVERY_S = {"waiting": 30.0, "running": 10.0}  # all users share the controller
ANSWERS_SOON_S = 0.5  # what a look waits for an answer
GONE_AFTER_S = 60.0  # a new job is not yet known everywhere, and accounting lags behind
LATE_S = 10.0  # a look that comes this late: this process was stopped, or its file system did not answer

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
    touched_s: Callable[[], float]  # when the lock was last touched, by any clock
    places: Sequence[Path] = ()  # the directories that it writes to
    state: JobState = field(default_factory=lambda: JobState("PENDING"))
    submitted_s: float = 0.0
    started_s: float | None = None
    gone_since_s: float | None = None
    is_reported_alive: bool = False
    is_finished: bool = False  # its last words are in the log
    progress: str | None = None  # of the run that goes on, for the status line
    read_bytes: int = 0
    touch_s: float = 0.0  # of its lock, as last seen
    looked_s: float = 0.0
    alive_s: float | None = None  # when its lock was last seen to be touched, in its present state
    is_reported_silent: bool = False
    _rest: bytes = field(default=b"", repr=False)

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
            self._watch_lock(job)
        if self._answer is None and self._is_due():
            self._asked_s, self._answer = self._clock(), in_background(self._ask, list(self._jobs))
        ends = [] if self._answer is None else self._heard(self._answer)
        self._console.status(", ".join(map(self._status, self._jobs.values())))
        return ends

    def _watch_lock(self, job: WatchedJob) -> None:
        """Say once that a job which Slurm shows as running does not touch its lock any more."""
        before_s, job.touch_s = job.touch_s, job.touched_s()
        now_s, is_late = self._clock(), self._clock() > job.looked_s + LATE_S
        job.looked_s = now_s
        if job.state.state != "RUNNING" or job.is_finished:  # a suspended one touches nothing
            job.alive_s = None
        elif job.touch_s != before_s or (is_late and job.alive_s is not None):
            job.alive_s = now_s
            if job.is_reported_silent:
                self._console.say(f"{job.label} gives signs of life again")
            job.is_reported_silent = False
        elif job.alive_s is None or job.is_reported_silent or now_s - job.alive_s < SILENT_AFTER_S:
            return
        elif job.is_held:  # else it has released it
            job.is_reported_silent = True
            node = next(iter(host_names(job.state.nodes)), "its first node")
            silent = f"has given no sign of life for {duration(now_s - job.alive_s)}"
            why = f"its run_scale.py on {node} is stopped, or {node} or its file system hangs"
            end = f"if it stays so, end it with `scancel {job.id}`, and start snakemake again"
            self._console.say(f"{job.label} runs, but {silent}: {why}; {end}")

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
        ran_s = self._clock() - (job.started_s if job.started_s is not None else job.submitted_s)
        state = job.state.state
        words = "".join(slurm_jobs.slurms_words(file_text(job.log) or "")[-1:])  # such as "Exceeded job memory limit"
        # Slurm has forgotten it or lost its node, but it had printed that all was done: the records will show it.
        well = state == slurm_jobs.ENDED_WELL or (state in (slurm_jobs.GONE, slurm_jobs.NODE_FAIL) and job.is_finished)
        asked = job.asked_min, job.left_lock_on
        cause = Advice("", "") if well else slurm_jobs.advice(job.state, words, job.stage, *asked)
        if not well and not words and (full := _full(job.places)):  # it could not say so: its log is there too
            cause = full
        named, reason = (job.id, job.stage, job.scale, state, str(job.log)), words or job.state.reason
        end = JobEnd(*named, ok=well, nodes=job.state.nodes, reason=reason, why=cause.why, next=cause.next)
        self._console.say(f"{job.stage} {job.scale}: {end.in_words}, after {duration(ran_s)}")
        return end

    def _print_lines(self, job: WatchedJob) -> None:
        for line in job.new_lines():
            job.is_finished = job.is_finished or line.endswith((*LAST_WORDS_OF.values(),))
            job.progress = progress_in(line) if self._console.is_terminal else None
            if job.progress is None:
                self._console.say(line)

    def _status(self, job: WatchedJob) -> str:
        if job.started_s is None:
            waited = duration(self._clock() - job.submitted_s)
            return f"{job.scale} waits {waited}" + (f" ({job.state.reason})" if job.state.reason else "")
        return f"{job.scale} runs {duration(self._clock() - job.started_s)} {job.progress or ''}".rstrip()
