"""srun: one task of a job step per GPU, each a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddp_ladder.platform.launchers.launcher import NO_JOB_OF_SLURM, Launcher, Run


class Srun(Launcher):
    """srun with one task per GPU. Without Slurm its agents set the variables that srun would set."""

    name = "srun"
    starts = "starts one process per GPU"
    comment = "# The script reads its rank where torchrun would have set it; the values come from Slurm."
    step_comment = "# One process per GPU. Each sees all GPUs of its node, as NCCL wants, and takes its LOCAL_RANK's."
    simulated_text = (
        "# Without Slurm: what srun sets, for scripts that read it. No job of Slurm has this number.\n"
        f"simulated=$(({NO_JOB_OF_SLURM} + job_id))"
    )

    def step_variables(self, run: Run, job_id: str, nodes: Sequence[str]) -> dict[str, str]:
        per_node = run.gpus_per_node
        on_all = f"(x{run.nodes})" if run.nodes > 1 else ""
        values: Mapping[str, object] = {
            "SLURM_JOB_ID SLURM_JOBID": job_id,
            "SLURM_STEP_ID SLURM_STEPID": 0,
            "SLURM_JOB_NODELIST SLURM_NODELIST SLURM_STEP_NODELIST": ",".join(nodes),
            "SLURM_JOB_NUM_NODES SLURM_NNODES SLURM_STEP_NUM_NODES": run.nodes,
            "SLURM_NTASKS SLURM_NPROCS SLURM_STEP_NUM_TASKS": run.world_size,
            "SLURM_NTASKS_PER_NODE SLURM_GPUS_ON_NODE": per_node,
            "SLURM_TASKS_PER_NODE SLURM_STEP_TASKS_PER_NODE": f"{per_node}{on_all}",
            "SLURM_CPUS_PER_TASK": run.threads_per_rank,
            "SLURM_CPUS_ON_NODE": per_node * run.threads_per_rank,
        }
        return {name: str(value) for names, value in values.items() for name in names.split()}

    def task_variables(self, rank: int | str, local_rank: int | str, node_rank: int | str) -> dict[str, str]:
        return {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local_rank), "SLURM_NODEID": str(node_rank)}

    def ranks_text(self, run: Run) -> str:
        return (
            f"{self.comment}\n"
            'export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID"\n'
            f"export WORLD_SIZE={run.world_size} LOCAL_WORLD_SIZE={run.gpus_per_node} "
            'GROUP_RANK="$SLURM_NODEID"'
        )
