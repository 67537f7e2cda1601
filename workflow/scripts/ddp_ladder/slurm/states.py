"""States of Slurm jobs, from the controller, or from accounting for jobs that it has forgotten, and their meaning."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ddp_ladder.common.messages import leave_out, printable
from ddp_ladder.slurm.query import MARK, NoAnswer, SlurmError, Unreadable, run_command, squeue, unknown

Phase = Literal["waiting", "running", "ended"]

WAITING = frozenset("PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT".split())
RUNNING = frozenset("RUNNING COMPLETING RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED".split())
ENDED_WELL = "COMPLETED"
NODE_FAIL = "NODE_FAIL"
GONE = "GONE"  # our own word: neither the controller nor the accounting knows the job any more

_SLURMS_WORDS = re.compile(r"^(?:slurmstepd|srun|slurmd)[^:]*: error: (?:\*\*\* )?(.*?)(?: \*\*\*)?$", re.MULTILINE)
# If control groups do not limit memory, a job that takes too much is FAILED or CANCELLED.
_OUT_OF_MEMORY = re.compile(r"memory limit|oom.?kill|out of memory", re.IGNORECASE)

_SQUEUE = "iTSNr"
_SACCT = "JobIDRaw|State|NodeList|Reason"


@dataclass(frozen=True)
class JobState:
    """The state of a job as Slurm reports it. reason: why it waits or ended; nodes, start: may be empty."""

    state: str
    reason: str = ""
    nodes: str = ""
    start: str = ""  # when it started, or is expected to: 2026-11-20T23:40:00
    dead: tuple[str, ...] = ()  # after NODE_FAIL: its nodes that are down, if Slurm still shows it

    @property
    def phase(self) -> Phase:
        """The phase of the state; "ended" for an unknown state, so that nobody waits for ever."""
        if self.state in WAITING:
            return "waiting"
        return "running" if self.state in RUNNING else "ended"


@dataclass(frozen=True)
class Advice:
    """The cause of a bad end, and what to do."""

    why: str
    next: str


_AGAIN = "start snakemake again: finished runs are kept"
ENDS: Mapping[str, Advice] = {
    "BOOT_FAIL": Advice("a node did not boot", _AGAIN),
    "CANCELLED": Advice("someone cancelled it (scancel), or Slurm did", f"if it was not you, ask why; then {_AGAIN}"),
    "DEADLINE": Advice("its deadline was over", "remove --deadline from slurm.extra in cluster.yaml"),
    "FAILED": Advice("its batch script failed", f"the job's log shows why; then {_AGAIN}"),
    NODE_FAIL: Advice("a node died under it", f"{leave_out()}, or just {_AGAIN}"),
    "OUT_OF_MEMORY": Advice(
        "it used more memory than it had asked for",
        "raise node.memory_mb in cluster.yaml, or lower workload.batch_per_gpu or the loader's workers",
    ),
    "PREEMPTED": Advice(
        "a job of higher priority took its nodes",
        f"{_AGAIN}, or take a partition or QOS that is not preempted (slurm.partition, slurm.qos in cluster.yaml)",
    ),
    "REVOKED": Advice("another cluster of the federation took it", _AGAIN),
    "TIMEOUT": Advice("its time was up", "raise stages.{stage}.runtime in config.yaml and start snakemake again"),
    GONE: Advice("neither squeue nor sacct knows it any more", f"ask your site what became of it, or {_AGAIN}"),
}
_UNKNOWN_END = Advice("a state that ddp-ladder does not know", f"ask your site what it means; {_AGAIN}")


def slurms_words(log: str) -> list[str]:
    """Return Slurm's own messages in a log, such as ``Exceeded job memory limit``."""
    return [printable(words) for words in _SLURMS_WORDS.findall(log)]


def advice(state: str, words: str, stage: str, dead: Sequence[str] = ()) -> Advice:
    """Return why a job ended in ``state``, and what to do. words: Slurm's message in the job's log. dead: nodes."""
    if dead:
        which = ",".join(dead)
        return Advice(
            f"{which} does not answer Slurm: it died, or its network did",
            f"start snakemake again, which keeps finished runs; if it comes again, {leave_out(*dead)}",
        )
    found = ENDS.get("OUT_OF_MEMORY" if _OUT_OF_MEMORY.search(words) else state, _UNKNOWN_END)
    return Advice(found.why, found.next.format(stage=stage))


# After `man squeue`, JOB REASON CODES. A reason that is missing here is shown by its name alone.
REASONS: Mapping[str, str] = {
    "AssocGrpGRES": "the account's GPUs are all in use",
    "AssocGrpGRESMinutes": "the account's GPU time is used up",
    "AssocGrpCPUMinutesLimit": "the account's CPU time is used up",
    "AssocGrpBillingMinutes": "the account's time is used up",
    "AssocMaxJobsLimit": "the account has as many jobs running as it may",
    "BadConstraints": "no node has slurm.constraint",
    "BeginTime": "its start time has not come",
    "JobHeldAdmin": "held by an administrator",
    "JobHeldUser": "held: scontrol release {job}",
    "PartitionConfig": "the partition does not take such a job",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "PartitionNodeLimit": "more nodes than the partition can give",
    "PartitionTimeLimit": "more time than the partition gives",
    "Priority": "jobs of higher priority are before it",
    "QOSGrpNodeLimit": "the QOS has as many nodes in use as it may",
    "QOSMaxJobsPerUserLimit": "you have as many jobs running as the QOS lets you",
    "QOSMaxGRESPerUser": "you use as many GPUs as the QOS lets you",
    "QOSMaxNodePerUserLimit": "you use as many nodes as the QOS lets you",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Reservation": "its reservation has not begun",
    "Resources": "it is next, and waits for nodes to become free",
}


def reason_in_words(reason: str, job_id: str) -> str:
    """``Priority: jobs of higher priority are before it``."""
    name = reason.partition(",")[0].strip()
    words = REASONS.get(name)
    return f"{reason}: {words.format(job=job_id)}" if words else reason


def ask(job_ids: Iterable[str]) -> dict[str, JobState]:
    """Return the state of each job; GONE for an unknown job. Raises SlurmError if the controller does not answer."""
    wanted = list(job_ids)
    known = _queued(wanted)
    forgotten = [job for job in wanted if job not in known]
    if forgotten and shutil.which("sacct"):
        known |= _accounted(forgotten)
    states = {job: known.get(job, JobState(GONE)) for job in wanted}
    return {
        job: replace(state, dead=_dead(state.nodes)) if state.state == NODE_FAIL else state
        for job, state in states.items()
    }


def _dead(nodes: str) -> tuple[str, ...]:
    """Return the nodes of a list that are down or do not respond; empty if Slurm does not tell."""
    try:
        printed = run_command(["sinfo", "--noheader", "--Node", f"--nodes={nodes}", f"--format={MARK}|%N|%T"])
    except SlurmError:
        return ()
    rows = [line.split("|") for line in printed.splitlines() if line.startswith(f"{MARK}|")]
    return tuple(dict.fromkeys(name for _, name, state in rows if state.startswith("down") or state.endswith("*")))


def cancel(job_ids: Iterable[str]) -> str:
    """Cancel jobs that have not ended; return the outcome in words, also if Slurm does not answer."""
    jobs = list(job_ids)
    try:
        run_command(["scancel", "--quiet", *jobs])
    except SlurmError as silent:
        return f"NOT cancelled: {' '.join(jobs)} ({silent}). Do it by hand: scancel {' '.join(jobs)}"
    return f"cancelled: {' '.join(jobs)}; finished runs are kept"


def job_state(state: str, start: str, nodes: str, reason: str) -> JobState:
    """Return the state from squeue's fields."""
    return JobState(state, "" if reason == "None" else reason, nodes, "" if start == "N/A" else start)


def parse_sacct(text: str) -> dict[str, JobState]:
    """Parse lines ``id|state|nodes|reason`` after their header; a state may have more words: ``CANCELLED by 1000``.

    Other lines are messages of the site. Raises Unreadable if there is no header.
    """
    lines = text.splitlines()
    if _SACCT not in lines:
        raise Unreadable("sacct", text)
    found = {}
    for line in lines[lines.index(_SACCT) + 1 :]:
        if not re.match(r"\d+\|[A-Z_]+.*\|.*\|", line):
            continue
        job, state, nodes, reason = line.split("|", 3)
        nodes = "" if nodes == "None assigned" else nodes
        found[job] = JobState(state.partition(" ")[0], "" if reason == "None" else reason, nodes)
    return found


def _queued(job_ids: list[str]) -> dict[str, JobState]:
    """Return the states that the controller knows, by job id: a user name from the environment may be wrong."""
    if not job_ids:
        return {}
    try:
        rows = squeue(_SQUEUE, "--states=all", f"--jobs={','.join(job_ids)}")
        return {job.strip(): job_state(*rest) for job, *rest in rows}
    except SlurmError as error:
        if not unknown(str(error)):
            raise
    # One forgotten job makes squeue fail for all: ask for each.
    return {job: state for each in job_ids if len(job_ids) > 1 for job, state in _queued([each]).items()}


def _accounted(job_ids: list[str]) -> dict[str, JobState]:
    """Return the states that accounting knows; empty if there is none.

    Raises Unreadable, and NoAnswer: accounting that hangs may know the job.
    """
    fields = _SACCT.replace("|", ",")
    command = ["sacct", "--allocations", "--parsable2", f"--jobs={','.join(job_ids)}", f"--format={fields}"]
    try:
        printed = run_command(command)
    except NoAnswer:
        raise
    except SlurmError:
        return {}  # a Slurm without slurmdbd has sacct too, which then fails
    return parse_sacct(printed)
