"""The last look before jobs are submitted to Slurm."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection

from ddp_ladder.ladder import Ladder
from ddp_ladder.messages import Problem, UserError
from ddp_ladder.slurm_check import check_jobs
from ddp_ladder.slurm_offer import read_offer

TOOLS = ("sbatch", "scontrol", "squeue", "scancel")


def check_before_submission(ladder: Ladder, scales: Collection[str]) -> None:
    """Compare the jobs of these scales with what Slurm offers; what will have to wait is said on stderr.

    Raises UserError for jobs that Slurm would refuse or never start, and where there is no Slurm.
    """
    if not scales:
        return
    require_slurm()
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
