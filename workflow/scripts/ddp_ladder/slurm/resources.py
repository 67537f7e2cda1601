"""The resources that a scale's job asks Slurm for, by the names of snakemake-executor-plugin-slurm."""

from __future__ import annotations

import shlex
from typing import Any

from ddp_ladder.plan.plan import ScaleJob


def slurm_resources(job: ScaleJob) -> dict[str, Any]:
    """Return the resources of the job's rule, None for those not asked for. Other executors ignore them."""
    several = job.scale.nodes > 1
    return {
        # The key makes the rule run in the batch step, where srun can be called. Its value makes the plugin ask for
        # tasks, which must be more than one.
        "mpi": "srun" if several else "",
        "nodes": job.scale.nodes,
        "tasks": job.scale.nodes if several else 1,
        # Else the plugin asks for --ntasks-per-gpu and starts the rule once per GPU.
        "tasks_per_gpu": 0,
        "gres": job.gres or "",  # per node; the plugin's `gpu` would be per job
        "cpus_per_task": job.cpus,
        "mem_mb": job.memory_mb or 0,  # Snakemake wants a number; the plugin takes 0 for none
        "runtime": job.runtime_min,
        "slurm_account": job.slurm.account,
        "slurm_partition": job.slurm.partition,
        "qos": job.slurm.qos,
        "constraint": job.slurm.constraint,
        "slurm_extra": shlex.join(_options(job)) or None,
    }


def _options(job: ScaleJob) -> list[str]:
    """Return the options for which the plugin has no resource. It passes them to a shell."""
    slurm = job.slurm
    named = {"reservation": slurm.reservation, "nodelist": slurm.nodelist, "exclude": slurm.exclude}
    return [f"--{name}={value}" for name, value in named.items() if value] + list(slurm.extra)
