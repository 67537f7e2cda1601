"""Head of job.sh: what it is, where it runs and, for Slurm, the #SBATCH lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.launch import Places
from ddp_ladder.plan import RunSpec, ScaleJob
from ddp_ladder.settings import Slurm
from ddp_ladder.shell_text import Lines, quote


@dataclass(frozen=True)
class Place:
    """Where a run belongs. directory: the run's, relative to the project where it is inside."""

    project: Path
    directory: Path
    binds: tuple[str, ...] = ()  # for the container

    @property
    def places(self) -> Places:
        """The same, absolute."""
        return Places(self.project, self.project / self.directory)


def sbatch_options(job: ScaleJob, spec: RunSpec, place: Place) -> list[str]:
    """Options of sbatch, one each; what is null in the configuration is not asked for."""
    per_node = tasks_per_node(spec)
    log = str(place.directory / "job-%j.log").replace("%", "%%").replace("%%j.log", "%j.log")
    asked: Mapping[str, str | int | None] = {
        "job-name": spec.name.replace("/", "-"),
        "nodes": spec.nodes,
        "ntasks-per-node": per_node,
        "gres": job.gres,
        "cpus-per-task": job.cpus // per_node,
        "mem": None if job.memory_mb is None else f"{job.memory_mb}M",
        "time": job.runtime_min,
    }
    return options(asked, job.slurm, {"chdir": str(place.project), "output": log})


def options(asked: Mapping[str, str | int | None], slurm: Slurm, last: Mapping[str, str]) -> list[str]:
    """``asked``, what the site asks for under slurm, and ``last``, as options of sbatch; None is not asked for."""
    site = {
        "account": slurm.account,
        "partition": slurm.partition,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "reservation": slurm.reservation,
        "nodelist": slurm.nodelist,
        "exclude": slurm.exclude,
    }
    wanted = {**asked, **site, **last}
    return [f"--{name}={quote(str(value))}" for name, value in wanted.items() if value is not None] + [
        *slurm.extra,
        "--no-requeue",
    ]


def tasks_per_node(spec: RunSpec) -> int:
    """torchrun is one task that starts the node's processes; with launcher srun each process is a task."""
    return 1 if spec.launcher == "torchrun" else spec.gpus_per_node


def header(job: ScaleJob, spec: RunSpec, place: Place) -> Lines:
    """First lines: what it is, how it is started, and what it asks Slurm for."""
    return [
        "#!/bin/bash",
        f"# The run {spec.name} as a job of its own, with nothing of Snakemake or ddp-ladder:",
        "#     sbatch job.sh",
        *(["# or without Slurm, on this machine:", "#     bash job.sh here"] if spec.nodes == 1 else []),
        "# ddp-ladder writes this file again when it repeats the run: to change something, edit a copy.",
        "#",
        "# chdir: the paths below are relative to it. no-requeue: a second start would write over what the first one",
        "# wrote.",
        *(f"#SBATCH {option}" for option in sbatch_options(job, spec, place)),
    ]


def early_end(spec: RunSpec) -> Lines:
    """Where the measured run was cut short: that this one is not."""
    ends = [f"{spec.max_steps} steps"] if spec.max_steps is not None else []
    ends += [f"{spec.max_seconds:g} seconds"] if spec.max_seconds is not None else []
    if not ends:
        return []
    return [
        f"# The measured run was ended after {' or '.join(ends)}. This one trains to its end: it may take more time.",
    ]


def guard(spec: RunSpec, place: Place) -> Lines:
    """Sets job_id, and ends a script that was started in a way that it is not for."""
    if spec.nodes > 1:
        return [f"job_id=${{SLURM_JOB_ID:?this run has {spec.nodes} nodes, which Slurm gives it: sbatch job.sh}}"]
    return [
        "# A login node is no place to train: without Slurm only where it is asked for.",
        'if [ -z "$SLURM_JOB_ID" ] && [ "$1" != here ]; then',
        '    echo "this script is for Slurm: sbatch job.sh (or on this machine: bash job.sh here)" >&2',
        "    exit 1",
        "fi",
        f"cd {quote(str(place.project))} || exit",
        "job_id=${SLURM_JOB_ID:-$$}",
    ]
