"""mpirun of Open MPI: one process per GPU, for scripts that use MPI beside torch. Tried with Open MPI 4.1."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddp_ladder.platform.launchers.launcher import Run
from ddp_ladder.platform.launchers.srun import Srun

# From SIGTERM to SIGKILL, for scripts that save their state. Not more: Open MPI always waits so long, once before
# SIGTERM and once after it. Its default is 1.
END_S = 5

# What of a job step's options Open MPI sets itself for its daemons, and a name by which the step would be signalled.
_OWN = ("srun", "--nodelist=", "--nodes=", "--ntasks=", "--ntasks-per-node=", "--kill-on-bad-exit", "--job-name=")


class Mpirun(Srun):
    """Ranks that Open MPI starts, through a daemon on each node, as srun would number them.

    The ranks of mpirun's own node are its children. On other nodes they inherit Slurm's variables of a daemon, whose
    job step has one task a node, so each sets its own. Without Slurm the agents set the variables of mpirun.
    """

    name = program = "mpirun"
    starts = "of Open MPI starts one process per GPU"
    step_comment = (
        "# One process per GPU, which Open MPI starts through a daemon on each node.\n"
        "# bind-to none: each rank, with its loader workers, would have one core."
    )
    comment = "# The script reads its rank where torchrun would have set it; the values come from Open MPI."
    simulated_text = "# Without Slurm: what mpirun sets, for scripts that read it."

    def step_variables(self, run: Run, job_id: str, nodes: Sequence[str]) -> dict[str, str]:
        size = str(run.world_size)
        own = {"OMPI_COMM_WORLD_SIZE": size, "OMPI_COMM_WORLD_LOCAL_SIZE": str(run.gpus_per_node)}
        return {"SLURM_NTASKS": size, **own}

    def task_variables(self, rank: int | str, local_rank: int | str, node_rank: int | str) -> dict[str, str]:
        own = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank)}
        return {**super().task_variables(rank, local_rank, node_rank), **own}

    def step(
        self, srun: Callable[[int], list[str]], agent: Sequence[str], run: Run, job_id: str, nodes: Sequence[str]
    ) -> list[str]:
        allocation = super().step_variables(run, job_id, nodes)
        names = ("SLURM_JOBID", "SLURM_NODELIST", "SLURM_TASKS_PER_NODE")  # which the job's environment may not have
        variables = [f"{name}={allocation[name]}" for name in names]
        mpirun = ["mpirun", "--mca", "plm_slurm_args", _of_daemons(srun(1)), *_options(run)]
        return ["env", *variables, *mpirun, "bash", "-c", f'{"; ".join(_numbers(run))}; exec "$@"', "bash", *agent]

    def step_text(self, run: Run, options: Callable[[int], list[str]], of_gpus: Sequence[str]) -> str:
        of_daemons, numbers = _of_daemons(" ".join(options(1)).split()), "\n        ".join(_numbers(run))
        return (
            f"{self.step_comment}\n"
            "# plm_slurm_args: of the srun that starts the daemons, which takes no --cpus-per-task from sbatch\n"
            "# since Slurm 22.05. unset: defaults that would hide GPUs.\n"
            f"unset {' '.join(of_gpus)}\n"
            f'mpirun --mca plm_slurm_args "{of_daemons}" \\\n    {" ".join(_options(run))} \\\n'
            f"    bash -c '{numbers}\n        on_each'"
        )


def _of_daemons(srun: Sequence[str]) -> str:
    return " ".join(option for option in srun if not option.startswith(_OWN))


def _options(run: Run) -> list[str]:
    end = ["--mca", "odls_base_sigkill_timeout", str(END_S)]
    per_node = f"ppr:{run.gpus_per_node}:node"
    return [*end, "-np", str(run.world_size), "--map-by", per_node, "--rank-by", "slot", "--bind-to", "none"]


def _numbers(run: Run) -> tuple[str, ...]:
    """Return lines of shell that set Slurm's variables of a rank's place."""
    return (
        "export SLURM_PROCID=$OMPI_COMM_WORLD_RANK SLURM_LOCALID=$OMPI_COMM_WORLD_LOCAL_RANK",
        f"export SLURM_NODEID=$((SLURM_PROCID / {run.gpus_per_node})) SLURM_NTASKS=$OMPI_COMM_WORLD_SIZE",
    )
