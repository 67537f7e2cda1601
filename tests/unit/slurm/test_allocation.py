from __future__ import annotations

from dataclasses import replace

import pytest
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.run.interruption import END_S, MARGIN_S, limits_s
from ddp_ladder.settings.keys import Slurm
from ddp_ladder.settings.terms import Scale
from ddp_ladder.slurm.query import (
    AllocatedResources,
    misfits,
    parse_allocation,
    salloc_for,
    widest,
)

# Slurm 22.05.8, `scontrol show job --details`, shortened.
SHOWN = """JobId=1 JobName=interactive
   NodeList=node[1-3]
   BatchHost=node1
   NumNodes=3 NumCPUs=8 NumTasks=2 CPUs/Task=4 ReqB:S:C:T=0:0:*:*
   JOB_GRES=gpu:4
     Nodes=node[1-2] CPU_IDs=0-3 Mem=8000 GRES=gpu:2(IDX:0-1)
     Nodes=node3 CPU_IDs=0-1,4,6-8 Mem=7000 GRES=gpu:a100:2(IDX:0-1),gpu:a100:mig:2(IDX:2,3),nvme:1
"""
OFFER = AllocatedResources("1", nodes=2, gpus=2, cpus=4, memory_mb=8000)
JOB = ScaleJob("stage3", Scale(2, 2), 5, (), cpus=4, slurm=Slurm(), memory_mb=8000, gres="gpu:2")


def test_an_allocation_offers_what_its_least_node_has() -> None:
    assert parse_allocation("1", SHOWN) == AllocatedResources("1", nodes=3, gpus=2, cpus=4, memory_mb=7000)


def test_a_scale_lasts_as_long_as_its_runtime_and_its_allocation_let_it() -> None:
    assert limits_s(600, None) == (600, END_S)  # without Slurm nothing ends it but itself
    assert limits_s(600, 7200) == (600, END_S)
    assert limits_s(600, 590) == (590 - MARGIN_S, END_S)
    # The shortest job of Slurm is half for the runs and half for their end.
    runs_s, end_s = limits_s(60, 54)
    assert runs_s == 27
    assert 0 < end_s < 27


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ({}, []),
        ({"scale": Scale(1, 1), "cpus": 1, "memory_mb": None}, []),
        ({"scale": Scale(2, 4), "gres": None}, []),
        ({"scale": Scale(3, 2)}, ["3 nodes"]),
        ({"scale": Scale(2, 4)}, ["4 GPUs per node"]),
        ({"cpus": 5, "memory_mb": 9000}, ["5 CPUs per node", "9000 MB per node"]),
    ],
)
def test_a_scale_lacks_what_the_allocation_does_not_have(change: dict[str, object], lacks: list[str]) -> None:
    assert misfits(replace(JOB, **change), OFFER) == lacks  # type: ignore[arg-type]


def test_it_says_what_to_ask_for_so_that_every_scale_has_room() -> None:
    narrow = replace(JOB, scale=Scale(3, 1), cpus=2, gres="gpu:1", slurm=Slurm(account="p1"))
    assert salloc_for(widest([JOB, narrow])) == (
        "salloc --nodes=3 --ntasks-per-node=1 --gres=gpu:2 --cpus-per-task=4 --mem=8000M --time=15"
    )
    assert salloc_for(narrow) == (
        "salloc --nodes=3 --ntasks-per-node=1 --gres=gpu:1 --cpus-per-task=2 --mem=8000M --time=5 --account=p1"
    )
