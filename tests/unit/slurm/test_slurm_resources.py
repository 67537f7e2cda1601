from __future__ import annotations

from dataclasses import replace

from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.settings.cluster_keys import Slurm
from ddp_ladder.settings.terms import Scale
from ddp_ladder.slurm.resources import slurm_resources

JOB = ScaleJob(
    stage="stage3",
    scale=Scale(2, 4),
    runtime_min=20,
    runs=(),
    cpus=32,
    slurm=Slurm(),
    memory_mb=64000,
    gres="gpu:a100:4",
)


def test_several_nodes_ask_for_one_task_each() -> None:
    slurm = Slurm(
        account="p1", partition="gpu", qos="devel", constraint="ib", nodelist="n[1-2]", extra=("--exclusive",)
    )
    assert slurm_resources(replace(JOB, slurm=slurm)) == {
        "mpi": "srun",
        "nodes": 2,
        "tasks": 2,
        "tasks_per_gpu": 0,
        "gres": "gpu:a100:4",
        "cpus_per_task": 32,
        "mem_mb": 64000,
        "runtime": 20,
        "slurm_account": "p1",
        "slurm_partition": "gpu",
        "qos": "devel",
        "constraint": "ib",
        "slurm_extra": "'--nodelist=n[1-2]' --exclusive",
    }


def test_one_node_asks_for_no_mpi_and_what_is_not_set_for_nothing() -> None:
    asked = slurm_resources(replace(JOB, scale=Scale(1, 1), memory_mb=None, gres=None))
    assert (asked["mpi"], asked["nodes"], asked["tasks"], asked["gres"], asked["mem_mb"]) == ("", 1, 1, "", 0)
    for name in ("slurm_account", "slurm_partition", "qos", "constraint", "slurm_extra"):
        assert asked[name] is None
