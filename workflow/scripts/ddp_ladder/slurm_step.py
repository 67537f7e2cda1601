"""A job step: what srun is called with. Pure; nothing here asks Slurm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddp_ladder.plan import ScaleJob

# The rest of SLURM_* and SRUN_* are defaults of srun, which came with the allocation (SLURM_NTASKS, SLURM_MEM_PER_NODE,
# SLURM_GPU_BIND, ...) and would win over what is not said, or contradict what is. The step gets its own from Slurm.
KEPT = frozenset(
    {
        # What the Slurm is, and the job.
        "SLURM_CONF",
        "SLURM_CONF_SERVER",
        "SLURM_JWT",
        "SLURM_JOB_ID",
        # What a CPU is: --cpus-per-task counts in these.
        "SLURM_HINT",
        "SLURM_THREADS_PER_CORE",
        # Nothing to srun, but perhaps something to the training.
        "SLURM_CLUSTER_NAME",
        "SLURM_JOB_ACCOUNT",
        "SLURM_JOB_PARTITION",
        "SLURM_JOB_QOS",
        "SLURM_SUBMIT_DIR",
        "SLURM_SUBMIT_HOST",
    }
)


def step_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for srun."""
    return {key: value for key, value in environment.items() if not _default_of_srun(key)}


def _default_of_srun(key: str) -> bool:
    return key.startswith(("SLURM_", "SRUN_")) and key not in KEPT


def step_argv(job: ScaleJob, nodes: Sequence[str], tasks_per_node: int, name: str) -> list[str]:
    """srun with its options: a step that has exactly the scale's share of each of these nodes.

    Every count explicitly: Snakemake's job step takes Slurm's own out of the environment, and in an allocation of
    another shape they would be of that shape.
    """
    return [
        "srun",
        f"--job-name={name}",
        f"--nodes={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        f"--ntasks={len(nodes) * tasks_per_node}",
        f"--ntasks-per-node={tasks_per_node}",
        f"--cpus-per-task={max(1, job.cpus // tasks_per_node)}",
        # Per node, and no --gpu-bind: each task sees all of them. With --gpu-bind=none Slurm 22.05 shows several tasks
        # none at all.
        *([f"--gres={job.gres}"] if job.gres else []),
        f"--mem={job.memory_mb or 0}",  # 0: what the job has
        "--exact",
        "--distribution=block",  # rank k of a node is the node's k-th task
        *(option for option in job.slurm.extra if option.startswith(("--hint=", "--threads-per-core="))),
        "--kill-on-bad-exit=1",
        "--mpi=none",
        "--export=ALL",
        "--input=none",
    ]
