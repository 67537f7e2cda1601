"""The environment of Slurm's commands, without the user's defaults for their options.

squeue, sbatch and the others take defaults of their options from the environment (SQUEUE_STATES, SBATCH_TIMELIMIT,
SLURM_TIME_FORMAT), and a shell inside a job has variables that describe that job. Queries to Slurm get neither. A start
that submits jobs removes them from its own environment, because sbatch passes it on.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

# The Slurm to use, and the permission to use it.
CONNECTION = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})
_COMMANDS = ("SACCT", "SACCTMGR", "SALLOC", "SBATCH", "SCANCEL", "SCONTROL", "SINFO", "SQUEUE", "SRUN")
_OF_ONE_COMMAND = tuple(f"{command}_" for command in _COMMANDS)
_OF_ALL = "SLURM_"  # for all commands, or describing a job


def question_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a command of Slurm that starts nothing."""
    return {key: value for key, value in environment.items() if not _is_set_aside(key)}


def set_aside(environment: MutableMapping[str, str]) -> str:
    """Clear the environment of a process that submits jobs; return a line that names what was removed, or ""."""
    job = environment.get("SLURM_JOB_ID")
    keys = sorted(key for key in environment if _is_set_aside(key))
    for key in keys:
        del environment[key]
    # A job sets dozens of SLURM_*, which are not the user's: one entry names them all.
    named = [key for key in keys if job is None or not key.startswith(_OF_ALL)]
    if job is not None:
        named.append(f"SLURM_* of job {job}, in whose shell this was started")
    return f"set aside: {', '.join(named)} (jobs ask for what cluster.yaml says, under slurm and node)" if named else ""


def _is_set_aside(key: str) -> bool:
    return key.startswith(_OF_ONE_COMMAND) or (key.startswith(_OF_ALL) and key not in CONNECTION)
