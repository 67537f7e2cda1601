"""The workloads directly under srun: the names that a real Slurm gives to rank, world and first host."""

from __future__ import annotations

import re
import sys

import pytest
from cluster import Cluster
from instrument_support import INSTRUMENT

pytestmark = pytest.mark.slurm

PLACE = re.compile(r"^(\d+) of (\d+), (\d+) nodes, (\d+) per node$", re.MULTILINE)
PROGRAM = """
import sys
sys.path.insert(0, {workloads!r})
import torch
from common.distributed import process_group, total
with process_group() as world:
    assert total(torch.ones(1)).item() == world.size
    print(world.rank, "of", f"{{world.size}},", world.nodes, "nodes,", world.gpus_per_node, "per node", flush=True)

"""


def test_srun_alone_starts_the_ranks(cluster_without_accounting: Cluster) -> None:
    program = PROGRAM.format(workloads=str(INSTRUMENT.parents[1] / "workloads"))
    srun = ["srun", "--partition=gpu", "--nodes=2", "--ntasks-per-node=2", "--overcommit"]
    done = cluster_without_accounting.run([*srun, sys.executable, "-c", program])
    assert sorted(PLACE.findall(done.stdout)) == [(str(rank), "4", "2", "2") for rank in range(4)], done.stdout


def test_mlp_trains_under_srun(cluster_without_accounting: Cluster) -> None:
    script = str(INSTRUMENT.parents[1] / "workloads" / "mlp.py")
    srun = ["srun", "--partition=gpu", "--nodes=2", "--ntasks-per-node=1"]
    done = cluster_without_accounting.run([*srun, sys.executable, script, "--samples", "640", "--epochs", "1"])
    assert re.findall(r"^epoch +(\d)  ", done.stdout, re.MULTILINE) == ["1"], done.stdout
