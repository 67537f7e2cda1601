"""The last look before jobs are submitted to Slurm."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection
from pathlib import Path

from ddp_ladder.job_end import SUBMITTED, job_end_file, read_job_end
from ddp_ladder.ladder import Ladder
from ddp_ladder.messages import Problem, UserError
from ddp_ladder.slurm_check import check_jobs
from ddp_ladder.slurm_offer import read_offer
from ddp_ladder.slurm_query import SlurmError
from ddp_ladder.slurm_states import ask

TOOLS = ("sbatch", "scontrol", "squeue", "scancel")


def check_before_submission(ladder: Ladder, scales: Collection[str]) -> None:
    """Compare the jobs of these scales with what Slurm offers; what will have to wait is said on stderr.

    Raises UserError for jobs that Slurm would refuse or never start, where there is no Slurm, and while a job of an
    earlier start is left.
    """
    if not scales:
        return
    require_slurm()
    require_no_job_left(Path(ladder.results), scales)
    jobs = [job for job in ladder.plan.jobs if str(job.scale) in scales]
    verdict = check_jobs(jobs, ladder.settings, read_offer())
    for problem in verdict.waits:
        print(f"warning: {problem}\n", file=sys.stderr)
    if verdict.wrong:
        raise UserError(verdict.wrong)


def require_slurm() -> None:
    """Raises UserError where jobs cannot be submitted from this machine."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise UserError(
            Problem(
                "--executor slurm",
                "this machine has no Slurm to submit jobs to",
                found=f"no {', '.join(missing)}",
                allowed="a login node of the cluster",
                next="start it there, or climb on this machine: snakemake --profile profiles/local",
            )
        )


def require_no_job_left(results: Path, scales: Collection[str]) -> None:
    """Raises UserError while a job that an earlier start submitted, and was killed before it ended, is not over."""
    submitted = [end for scale in sorted(scales) if (end := read_job_end(results, scale)) and end.state == SUBMITTED]
    try:
        states = ask([end.job_id for end in submitted]) if submitted else {}
    except SlurmError as silent:
        raise UserError(Problem("squeue", str(silent), next="start again when Slurm answers")) from None
    left = [end for end in submitted if states[end.job_id].phase != "ended"]
    problems = [
        Problem(
            str(job_end_file(results, end.scale)),
            "a job of an earlier start is not over, and a second one would write to the same files",
            found=f"job {end.job_id} of {end.scale}: {states[end.job_id].state}",
            next=f"wait for it, or end it with `scancel {end.job_id}`; then start snakemake again",
        )
        for end in left
    ]
    if problems:
        raise UserError(problems)


def require_every_job_over(results: Path) -> None:
    """As require_no_job_left for every scale, where this machine has a Slurm to ask."""
    scales = [file.stem for file in (results / "jobs").glob("*.json")]
    if scales and shutil.which("squeue"):
        require_no_job_left(results, scales)
