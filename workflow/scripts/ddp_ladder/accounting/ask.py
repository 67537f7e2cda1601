"""Questions to Slurm about what a job used. No answer is no error: a row without these figures is written instead."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ddp_ladder.accounting.slurm_job import (
    SACCT,
    SSTAT,
    SlurmJob,
    StepUse,
    parse_sacct,
    parse_scontrol,
    parse_sstat,
)
from ddp_ladder.slurm.notation import parse_config
from ddp_ladder.slurm.query import SlurmError, run_command

WITHIN_S = 10.0  # a gate and a report wait for this
AGAIN_S = 2.0
NOT_GATHERED = "jobacct_gather/none"
DATABASE = "accounting_storage/slurmdbd"


def accounted_jobs(job_ids: Sequence[str], wait_s: float = 0.0) -> dict[str, SlurmJob] | None:
    """Return what sacct knows of these jobs; None if there is no accounting here, or it does not answer.

    wait_s: how long to ask again for jobs of which not everything is there yet; the database is filled with a delay.
    """
    until_s = time.monotonic() + wait_s
    question = ["sacct", "--parsable2", "--noconvert", f"--jobs={','.join(job_ids)}", f"--format={SACCT}"]
    while True:
        try:
            known = parse_sacct(run_command(question, WITHIN_S))
        except SlurmError:  # no such command, no slurmdbd, or no answer
            return None
        over = {job_id: job for job_id, job in known.items() if job.is_over and job_id in job_ids}
        if sum(job.is_whole for job in over.values()) == len(set(job_ids)) or time.monotonic() + AGAIN_S > until_s:
            return over
        time.sleep(AGAIN_S)


def controlled_job(job_id: str) -> SlurmJob | None:
    """Return what the controller knows of a job that is over; None if it is not, or the controller has forgotten it."""
    try:
        job = parse_scontrol(run_command(["scontrol", "--oneliner", "show", "job", job_id], WITHIN_S))
    except SlurmError:
        return None
    return job if job is not None and job.is_over else None


def memory_of_steps(job_id: str) -> list[StepUse]:
    """Return what sstat measures of a running job's steps; empty without an answer."""
    question = ["sstat", "--allsteps", "--parsable2", "--noconvert", f"--jobs={job_id}", f"--format={SSTAT}"]
    try:
        return parse_sstat(run_command(question, WITHIN_S))
    except SlurmError:
        return []


def samples_are_needed() -> bool:
    """Return True if sstat is the only source: Slurm measures memory, and has no database that keeps it."""
    try:
        config = parse_config(run_command(["scontrol", "show", "config"], WITHIN_S))
    except SlurmError:
        return False
    gathered = config.get("JobAcctGatherType", NOT_GATHERED) not in (NOT_GATHERED, "(null)", "")
    return gathered and config.get("AccountingStorageType") != DATABASE
