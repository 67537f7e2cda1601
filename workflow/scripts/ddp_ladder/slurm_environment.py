"""The environment of Slurm's commands: what a shell sets as their defaults decides nothing here.

squeue, sbatch and the others take defaults of their options from the environment (SQUEUE_STATES, SBATCH_TIMELIMIT,
SLURM_TIME_FORMAT), and a shell inside a job has what describes that job. No question to Slurm gets either. A start that
submits jobs clears its own environment of them, because sbatch passes it on.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

# Which Slurm it is, and who may ask it.
WHERE = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})
_COMMANDS = ("SACCT", "SACCTMGR", "SALLOC", "SBATCH", "SCANCEL", "SCONTROL", "SINFO", "SQUEUE", "SRUN")
_OF_ONE_COMMAND = tuple(f"{command}_" for command in _COMMANDS)
_OF_ALL = "SLURM_"  # commands, or of a job


def question_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a command of Slurm that starts nothing."""
    return {key: value for key, value in environment.items() if not _is_set_aside(key)}


def set_aside(environment: MutableMapping[str, str]) -> str:
    """Clear the environment of a process that submits jobs; returns a line that says of what, empty for nothing."""
    job = environment.get("SLURM_JOB_ID")
    keys = sorted(key for key in environment if _is_set_aside(key))
    for key in keys:
        del environment[key]
    # A job leaves dozens; nobody set them.
    named = [key for key in keys if job is None or not key.startswith(_OF_ALL)]
    if job is not None:
        named.append(f"SLURM_* of job {job}, in whose shell this was started")
    return f"set aside: {', '.join(named)} (jobs ask for what cluster.yaml says, under slurm and node)" if named else ""


def _is_set_aside(key: str) -> bool:
    return key.startswith(_OF_ONE_COMMAND) or (key.startswith(_OF_ALL) and key not in WHERE)
