"""The time that a job has for its runs, and that it needs to end them before Slurm does."""

from __future__ import annotations

GRACE_S = 20.0  # for a script that saves its state on SIGTERM; then everything is killed
KILLED_S = 10.0  # for Slurm to end the tasks of a job step on all nodes after SIGKILL
END_S = 2 * GRACE_S  # for agents to end after SIGTERM; each needs one grace period for its own processes
# Before Slurm ends the job, it has to end its agents, which may take all of END_S and KILLED_S, join the logs and write
# the records, which takes long on a slow file system.
WRITING_S = 20
MARGIN_S = END_S + KILLED_S + WRITING_S


def limits_s(runtime_s: float, slurm_s: float | None) -> tuple[float, float]:
    """Return the time for the scale's runs, and the time for agents to end after SIGTERM.

    slurm_s: until Slurm ends the job; None if it does not. If that is short, half of it is for the runs.
    """
    if slurm_s is None:
        return runtime_s, END_S
    margin_s = min(MARGIN_S, slurm_s / 2)
    return min(runtime_s, slurm_s - margin_s), END_S * margin_s / MARGIN_S
