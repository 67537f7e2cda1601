"""Slurm jobs: their states and ends and what these mean, their names, and their submission exactly once."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from uuid import uuid4

from ddp_ladder.common.files import read_json, sha256, write_json
from ddp_ladder.common.formats import duration, hostlist
from ddp_ladder.common.messages import leave_out, printable
from ddp_ladder.settings.terms import PRODUCTION, runtime_key
from ddp_ladder.slurm.query import MARK, SlurmError, run_command, sacct, squeue, unix_time, unknown, unreadable

Phase = Literal["waiting", "running", "ended"]

WAITING = frozenset("PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT".split())
RUNNING = frozenset("RUNNING COMPLETING RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED".split())
ENDED_WELL = "COMPLETED"
CANCELLED, NODE_FAIL, TIMEOUT, FAILED = "CANCELLED", "NODE_FAIL", "TIMEOUT", "FAILED"
GONE = "GONE"  # our own word: neither the controller nor the accounting knows the job any more

SLURMS_MIN = 1  # Slurm ends a job that much before or after its time

_SLURMS_WORDS = re.compile(r"^(?:slurmstepd|srun|slurmd)[^:]*: error: (?:\*\*\* )?(.*?)(?: \*\*\*)?$", re.MULTILINE)
# If control groups do not limit memory, a job that takes too much is FAILED or CANCELLED.
_OUT_OF_MEMORY = re.compile(r"memory limit|oom.?kill|out of memory", re.IGNORECASE)


@dataclass(frozen=True)
class JobState:
    """The state of a job as Slurm reports it; what it does not report is empty."""

    state: str
    reason: str = ""  # why it waits or ended
    nodes: str = ""  # in Slurm's short form
    start: str = ""  # when it started, or is expected to: 2026-11-20T23:40:00

    @property
    def phase(self) -> Phase:
        """The phase of the state; "ended" for an unknown state, so that nobody waits for ever."""
        if self.state in WAITING:
            return "waiting"
        return "running" if self.state in RUNNING else "ended"

    @property
    def since_start_s(self) -> float | None:
        """The seconds since a start in the past; None if it is not known."""
        started_s = unix_time(self.start)
        return None if started_s is None else time.time() - started_s


@dataclass(frozen=True)
class Advice:
    """The cause of a bad end, and what to do."""

    why: str
    next: str


AGAIN = "start snakemake again: finished runs are kept"
GO_ON = "start snakemake again: what the script has saved is kept"
ENDS: Mapping[str, Advice] = {
    CANCELLED: Advice("someone cancelled it (scancel), or Slurm did", "if it was not you, ask why; then {again}"),
    FAILED: Advice("its batch script failed", "read the end of its log; then {again}"),
    NODE_FAIL: Advice(
        "one of its nodes died",
        f"{{again}}; if it comes again, `sinfo --Node --states=down` shows which node it is; {leave_out()}",
    ),
    "OUT_OF_MEMORY": Advice(
        "it used more memory than it had asked for",
        "raise node.memory_mb in cluster.yaml, or lower workload.batch_per_gpu or the loader's workers",
    ),
    "PREEMPTED": Advice(
        "a job of higher priority took its nodes",
        "{again}, or take a partition or QOS that is not preempted (slurm.partition, slurm.qos in cluster.yaml)",
    ),
    TIMEOUT: Advice(
        "its time was up",
        "raise {key} in config.yaml (now {runtime}), or shorten its runs with measure.max_steps or "
        "measure.max_seconds, and start snakemake again",
    ),
    GONE: Advice("neither squeue nor sacct knows it any more", "ask your site what became of it, or {again}"),
}
_UNKNOWN_END = Advice("see JOB STATE CODES in `man squeue`", "{again}")


def slurms_words(log: str) -> list[str]:
    """Return Slurm's own messages in a log, such as ``Exceeded job memory limit``."""
    return [printable(words) for words in _SLURMS_WORDS.findall(log)]


def advice(job: JobState, words: str, stage: str, asked_min: int, killed: str = "") -> Advice:
    """Return why a job ended, and what to do. Asks Slurm which node is dead.

    words: Slurm's message in its log. asked_min: the time that it asked for. killed: the host on which it left its lock
    behind.
    """
    again = GO_ON if stage == PRODUCTION else AGAIN
    if job.state == NODE_FAIL and (dead := _dead(job.nodes)):
        why = f"{hostlist(dead)} does not answer Slurm: it died, or its network did"
        return Advice(why, f"{again}; if it comes again, {leave_out(*dead)}")
    is_of_memory = _OUT_OF_MEMORY.search(words)
    ran_s = job.since_start_s
    if job.state == TIMEOUT and ran_s is not None and ran_s < 60 * (asked_min - SLURMS_MIN):
        why = f"its time was up {duration(ran_s)} after its start, and it had asked for {asked_min} min"
        return Advice(f"{why}: someone has shortened it", f"ask your site who did, and why; or {again}")
    if job.state == FAILED and killed and not is_of_memory:
        look = f"run `dmesg` or `journalctl -k` on {killed}: often it was the out-of-memory killer; then raise "
        look += f"node.memory_mb in cluster.yaml, and {again}"
        return Advice("its process ended without a word and left its lock behind: it was killed", look)
    usual = ENDS.get("OUT_OF_MEMORY" if is_of_memory else job.state, _UNKNOWN_END)
    return Advice(usual.why, usual.next.format(key=runtime_key(stage), runtime=asked_min, again=again))


# Of `man squeue`, JOB REASON CODES, those that a job of a ladder often has; any other is shown by its name alone.
REASONS: Mapping[str, str] = {
    "JobHeldAdmin": "held by an administrator",
    "JobHeldUser": "held: scontrol release {job}",
    "PartitionNodeLimit": "more nodes than the partition can give",
    "PartitionTimeLimit": "more time than the partition gives",
    "Priority": "jobs of higher priority are before it",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Reservation": "its reservation has not begun",
    "Resources": "it is next, and waits for nodes to become free",
}


def reason_in_words(reason: str, job_id: str) -> str:
    """``Priority: jobs of higher priority are before it``."""
    name = reason.partition(",")[0].strip()
    words = REASONS.get(name)
    if words is None and "PerJob" in name:  # QOSMaxGRESPerJob, AssocMaxWallDurationPerJobLimit, ...
        words = "more than one job may have: it will never start; press Ctrl-C and ask for less"
    return f"{reason}: {words.format(job=job_id)}" if words else reason


def ask(job_ids: Iterable[str], within_s: float | None = None) -> dict[str, JobState]:
    """Return the state of each job; GONE for an unknown job. Raises SlurmError if the controller does not answer.

    within_s: of squeue, as in run_command.
    """
    wanted = list(job_ids)
    known = _queued(wanted, within_s)
    forgotten = [job for job in wanted if job not in known]
    if forgotten and shutil.which("sacct"):
        known |= _accounted(forgotten)
    return {job: known.get(job, JobState(GONE)) for job in wanted}


def _dead(nodes: str) -> tuple[str, ...]:
    """Return the nodes of a list that are down or do not respond; empty if Slurm does not tell."""
    try:
        printed = run_command(["sinfo", "--noheader", "--Node", f"--nodes={nodes}", f"--format={MARK}|%N|%T"])
    except SlurmError:
        return ()
    rows = [line.split("|") for line in printed.splitlines() if line.startswith(f"{MARK}|")]
    return tuple(dict.fromkeys(name for _, name, state in rows if state.startswith("down") or state.endswith("*")))


def cancel(job_ids: Iterable[str], kept: str = "finished runs are kept") -> str:
    """Cancel jobs that have not ended; return the outcome in words, also if Slurm does not answer. kept: of them."""
    jobs = list(job_ids)
    try:
        run_command(["scancel", "--quiet", *jobs])
    except SlurmError as silent:
        return f"NOT cancelled: {' '.join(jobs)} ({silent}). Do it by hand: scancel {' '.join(jobs)}"
    return f"cancelled: {' '.join(jobs)}; {kept}"


def job_state(state: str, start: str, nodes: str, reason: str) -> JobState:
    """Return the state from Slurm's fields."""
    place = "" if nodes == "None assigned" else nodes
    return JobState(state, "" if reason == "None" else reason, place, "" if start == "N/A" else start)


def _queued(job_ids: list[str], within_s: float | None) -> dict[str, JobState]:
    """Return the states that the controller knows, by job id: a user name from the environment may be wrong."""
    if not job_ids:
        return {}
    try:
        rows = squeue("iTSNr", "--states=all", f"--jobs={','.join(job_ids)}", within_s=within_s)
        return {job.strip(): job_state(*rest) for job, *rest in rows}
    except SlurmError as error:
        if not unknown(str(error)):
            raise
    # One forgotten job makes squeue fail for all: ask for each.
    answers = [_queued([job_id], within_s) for job_id in job_ids if len(job_ids) > 1]
    return {job_id: state for answer in answers for job_id, state in answer.items()}


def _accounted(job_ids: list[str]) -> dict[str, JobState]:
    """Return the states that accounting knows; empty if there is none.

    Raises SlurmError for no answer: accounting that hangs may know the job.
    """
    try:
        rows = sacct("JobIDRaw,State,NodeList,Reason", "--allocations", f"--jobs={','.join(job_ids)}")
    except SlurmError as error:
        if error.is_undecided:
            raise
        return {}  # a Slurm without slurmdbd has sacct too, which then fails
    # A state may have more words: CANCELLED by 1000.
    return {job: job_state(state.partition(" ")[0], "", *rest) for job, state, *rest in map(dict.values, rows)}


# The end of a scale's job, results/jobs/<scale>.json: the gate shows it for a scale without records. The file exists
# from the submission to a good end, and stays after a bad one.

SUBMITTED = "SUBMITTED"  # our own word: nobody has seen its end
NOT_SUBMITTED = "NOT_SUBMITTED"  # there is no such job


@dataclass(frozen=True)
class JobEnd:
    """One job's end. It can keep a gate closed, never open one: that takes records."""

    job_id: str
    stage: str
    scale: str
    state: str  # Slurm's: COMPLETED, TIMEOUT, ...; GONE if Slurm has forgotten it; SUBMITTED; NOT_SUBMITTED
    log: str
    ok: bool = False
    nodes: str = ""
    reason: str = ""  # Slurm's
    why: str = ""
    next: str = AGAIN

    @property
    def in_words(self) -> str:
        """``job 12 ended TIMEOUT on node[1-2]: its time was up``."""
        if self.state == NOT_SUBMITTED:
            return f"the job was not submitted: {self.why}"
        if self.state == SUBMITTED:
            return f"job {self.job_id} was submitted; its final state is unknown"
        where = f" on {self.nodes}" if self.nodes else ""
        why = f": {self.why}" if self.why else ""
        given = f" ({self.reason})" if self.reason and not self.ok else ""
        return f"job {self.job_id} ended {self.state}{where}{why}{given}"

    @property
    def evidence(self) -> str:
        """The end in words, with the path of the log."""
        return f"{self.in_words}; its log: {self.log}" if self.log else self.in_words


def job_end_file(results: Path, scale: str) -> Path:
    """Return the file with the end of a scale's last job."""
    return results / "jobs" / f"{scale}.json"


def write_job_end(results: Path, end: JobEnd) -> Path:
    """Write the end for the gate and the next start; return the file."""
    write_json(path := job_end_file(results, end.scale), asdict(end))
    return path


def read_job_end(results: Path, scale: str) -> JobEnd | None:
    """Return the end of a scale's last job; None if it ended well. Raises ValueError if the file holds none."""
    path = job_end_file(results, scale)
    try:
        return JobEnd(**read_json(path))
    except FileNotFoundError:
        return None
    except TypeError as error:
        raise ValueError(f"{path} does not hold the end of a job: {error}") from error


def job_left(results: Path, scale: str) -> JobEnd | None:
    """Return the job that a killed start submitted, and whose end nobody has seen; None if that is not recorded."""
    with contextlib.suppress(OSError, ValueError):
        end = read_job_end(results, scale)
        return end if end is not None and end.state == SUBMITTED else None
    return None


# Names. A job whose id was not recorded is found by its name.

_NAME = re.compile(r"(?P<scale>\d+x\d+)-ddp-ladder-(?P<results>[0-9a-f]{10})-[0-9a-f]{10}")
_DIGITS = 10


@dataclass(frozen=True)
class NamedJob:
    """A job of the ladder that Slurm knows."""

    id: str
    name: str
    scale: str
    state: JobState


def new_job_name(results: Path, scale: str) -> str:
    """Return a name that is unique to one submission of a scale in a results directory.

    The scale comes first, because squeue shows the first eight characters.
    """
    return f"{scale}-ddp-ladder-{_digest(results)}-{uuid4().hex[:_DIGITS]}"


def scale_of_name(name: str) -> str | None:
    """Return the scale of a job that a ladder has submitted; None for the name of any other job."""
    form = _NAME.fullmatch(name)
    return form and form["scale"]


def jobs_by_name(results: Path, given_up: Callable[[], bool] = lambda: False) -> list[NamedJob]:
    """Return the jobs of a results directory that Slurm knows, of every start, oldest first.

    given_up: as in run_command. Raises SlurmError.
    """
    jobs = []
    for job_id, state, start, nodes, reason, name in squeue("iTSNrj", "--states=all", given_up=given_up):
        form = _NAME.fullmatch(name)
        if form and form["results"] == _digest(results):
            jobs.append(NamedJob(job_id, name, form["scale"], job_state(state, start, nodes, reason)))
    return sorted(jobs, key=lambda job: int(job.id))


def _digest(results: Path) -> str:
    return sha256(str(results.resolve()).encode())[:_DIGITS]


# Submission. After "Socket timed out" sbatch may still have submitted the job, and a slow controller shows it late.
# Before each try, and after each failed one, Slurm is asked for the job by name; sbatch is tried again only if the
# queue is without it.

PAUSES_S = (10.0, 20.0, 40.0, 80.0, 160.0)  # before sbatch is tried again, and after its last try
LOOK_EVERY_S = 3.0  # for the job, in a pause
SUBMIT_WITHIN_S = 180.0  # Slurm's own patience, MessageTimeout, is up to 100 s at some sites
STOP_WITHIN_S = 10.0  # for the job of a try that Ctrl-C ended, which may have been submitted
_JOB_ID = re.compile(r"^(\d+)(?:;\S*)?$", re.MULTILINE)  # of --parsable; a cluster's name may follow


def job_id_of(printed: str) -> str:
    """Return the job that `sbatch --parsable` has printed, perhaps between lines of the site. Raises SlurmError."""
    ids = _JOB_ID.findall(printed)
    if len(ids) != 1:
        raise unreadable("sbatch", printed)
    return str(ids[0])


class NotSubmitted(Exception):
    """The job is not submitted; the text says why, ``next`` what to do."""

    def __init__(self, why: str, next_step: str) -> None:
        super().__init__(why)
        self.next = next_step


class Refused(NotSubmitted):
    """The job is not submitted: sbatch refuses what it asks for."""


class Stopped(Exception):
    """The start was ended in the meantime; its submitted jobs are cancelled."""


@dataclass(frozen=True)
class Submission:
    """One call of sbatch."""

    label: str  # begins each line for the user
    scale: str
    name: str
    argv: Sequence[str]  # with --parsable and --job-name
    script: str  # that sbatch reads
    earlier: str | None = None  # the job of a killed start that makes the same runs; it is followed while it goes on


class Submitter:
    """The submission of the jobs of one start, from several threads. say: prints a line for the user."""

    def __init__(self, results: Path, say: Callable[[str], None]) -> None:
        self._results = results
        self._say = say
        self._lock = threading.Lock()
        self._stopped_s: float | None = None
        self._jobs: set[str] = set()

    def stop(self) -> set[str]:
        """Refuse further submissions; return the jobs that were submitted and have not ended."""
        with self._lock:
            self._stopped_s = time.monotonic()
            return set(self._jobs)

    def over(self, job_id: str) -> None:
        with self._lock:
            self._jobs.discard(job_id)

    def submit(self, wanted: Submission) -> str:
        """Submit the job and return its id. Raises NotSubmitted, or Stopped."""
        job_id = self._submit(wanted)
        with self._lock:
            if self._stopped_s is None:
                self._jobs.add(job_id)
                return job_id
        self._say(f"{wanted.label}: {cancel([job_id])}")
        raise Stopped

    def _submit(self, wanted: Submission) -> str:
        failed: SlurmError | None = None
        for turn, pause_s in enumerate((0.0, *PAUSES_S)):
            try:
                queued = self._look(wanted, pause_s)
            except SlurmError as silent:
                if self._stopped_s is not None:
                    break
                self._say(f"{wanted.label}: Slurm does not show the queue ({silent}); asking again")
                continue  # a second job may be one too many
            if queued:
                what = "of a killed start goes on" if queued == wanted.earlier else "is in the queue all the same"
                self._say(f"{wanted.label}: job {queued} {what}")
                return queued
            if self._stopped_s is not None:
                raise Stopped
            if turn == len(PAUSES_S):
                break
            try:
                return self._sbatch(wanted, again=failed is not None)
            except SlurmError as error:
                if not error.is_undecided:
                    raise Refused(str(error), "correct what sbatch names: `slurm` and `node` in cluster.yaml") from None
                failed = error
                self._say(f"{wanted.label}: {failed}; looking whether it was submitted")
        raise NotSubmitted(
            f"{failed or 'squeue does not answer'}; given up after {duration(sum(PAUSES_S))}",
            f"see that `squeue --name={wanted.name}` knows no job; then start snakemake again",
        )

    def _sbatch(self, wanted: Submission, again: bool) -> str:
        printed = run_command(wanted.argv, SUBMIT_WITHIN_S, wanted.script, given_up=self._is_given_up)
        job_id = job_id_of(printed)
        if again:
            with contextlib.suppress(SlurmError):  # the first try may have submitted it late
                return self._look(wanted, 0.0) or job_id
        return job_id

    def _look(self, wanted: Submission, for_s: float) -> str | None:
        """Return the job with this name; None if the queue is without it until the end. Cancels all but the first.

        Raises SlurmError if Slurm still does not answer at the end, and NotSubmitted for a job of another start.
        """
        until_s = time.monotonic() + for_s
        while True:
            try:
                own = self._jobs_in_queue(wanted)
            except SlurmError:
                if self._is_time(until_s):
                    raise
            else:
                if own[1:]:
                    self._say(f"{wanted.label}: {cancel(own[1:])}")
                if own or self._is_time(until_s):
                    return next(iter(own), None)
            time.sleep(min(LOOK_EVERY_S, max(0.1, until_s - time.monotonic())))

    def _is_time(self, until_s: float) -> bool:
        return self._is_given_up() or time.monotonic() >= until_s

    def _is_given_up(self) -> bool:
        return self._stopped_s is not None and time.monotonic() >= self._stopped_s + STOP_WITHIN_S

    def _jobs_in_queue(self, wanted: Submission) -> list[str]:
        jobs = [job for job in jobs_by_name(self._results, self._is_given_up) if job.scale == wanted.scale]
        going_on = [job for job in jobs if job.state.phase != "ended"]
        for job in going_on:
            if job.name != wanted.name and job.id != wanted.earlier:
                why = f"job {job.id} of another start is not over ({job.state.state}), and is of the same runs"
                raise NotSubmitted(why, f"wait for it, or end it with `scancel {job.id}`; then start snakemake again")
        return [job.id for job in jobs if job.name == wanted.name or (job.id == wanted.earlier and job in going_on)]
