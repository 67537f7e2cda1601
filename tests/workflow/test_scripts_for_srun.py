"""Scripts that read what srun sets, in the manner of guides for Slurm: tried without Slurm, and under torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest
from one_run import run_script

# Rank, world and place from Slurm alone, and an address and a port made from the job's nodes and its number.
TRAIN = """
import os
rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
local_rank, per_node = int(os.environ.get("SLURM_LOCALID", 0)), int(os.environ["SLURM_GPUS_ON_NODE"])
assert rank == int(os.environ["SLURM_NODEID"]) * per_node + local_rank
assert size == int(os.environ["SLURM_NNODES"]) * per_node
os.environ["MASTER_ADDR"] = os.environ["SLURM_JOB_NODELIST"].split(",")[0]
os.environ["MASTER_PORT"] = str(10_000 + int(os.environ["SLURM_JOB_ID"][-4:]))
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
    del os.environ[name]

import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
dist.init_process_group("gloo", rank=rank, world_size=size)
data = torch.randn(800, 4)
loader = DataLoader(data, 4, sampler=DistributedSampler(data, num_replicas=size, rank=rank))
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in loader:
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_a_script_for_srun_can_be_tried_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run_script(TRAIN, tmp_path, monkeypatch, "2x1", launcher="srun")
    assert record.status == "ok", record.failure
    assert sum(rank.samples for rank in record.ranks) == 800


def test_under_torchrun_the_message_says_that_it_needs_srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = run_script(TRAIN, tmp_path, monkeypatch, "1x1", launcher="torchrun").failure
    assert failure is not None
    assert failure.verdict == "the script needs srun"
    assert failure.why.startswith("SLURM_PROCID is a variable that srun sets")
    assert "set launcher: srun in cluster.yaml" in failure.next
