"""The methods and attributes of the Slurm executor plugin that the ladder uses. The plugin itself may be missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddp_ladder.common.formats import dotted
from ddp_ladder.common.messages import Problem

DISTRIBUTION = "snakemake-executor-plugin-slurm"
OLDEST, BELOW = (2, 8), (3,)  # as in requirements.txt
INSTALL = "run `make setup` once, or pip install -r requirements.txt"
OVERRIDDEN = ("run_job", "check_active_jobs", "cancel_jobs", "get_account_arg", "get_partition_arg")
# Private to the plugin: no interface promises them. They report a job that a thread submitted, leave out the nodes on
# which a job failed when sbatch is called as the plugin calls it, and wait at Ctrl-C for a job that is being submitted.
METHODS = (*OVERRIDDEN, "_report_job_submission_threadsafe", "_report_job_error_threadsafe")
ATTRIBUTES = ("_failed_nodes", "_job_submission_executor", "slurm_logdir")


def problem_of(executor: Any, names: Sequence[str] = METHODS) -> Problem | None:
    """Return the problem with an executor that lacks one of these names; None if it has all of them."""
    missing = [name for name in names if not hasattr(executor, name)]
    if not missing:
        return None
    return Problem(
        DISTRIBUTION,
        f"its executor has no {', '.join(missing)}, which ddp-ladder builds on",
        allowed=f"{dotted(OLDEST)} or newer, below {dotted(BELOW)}",
        next=INSTALL,
    )
