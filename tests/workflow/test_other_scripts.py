"""Scripts that are no DDP training under torchrun, and fit all the same. Those that start their own ranks are refused:
tests/unit/instrument/test_scripts.py.
"""

from __future__ import annotations

from ddp_ladder.gates.scaling import scale_points
from one_run import Here
from project_copy import LOOP

DATA_PARALLEL = """
import os, torch
from torch.utils.data import DataLoader

assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & set(os.environ)
model = torch.nn.DataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(torch.randn(8000, 4), 128):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
"""


def test_one_process_counts_as_all_gpus_of_the_scale(here: Here) -> None:
    record = here.run(DATA_PARALLEL, "1x2", variant="dataparallel", launcher="python")
    assert record.status == "ok", record.failure
    assert (record.world.size, record.world.backend, len(record.ranks)) == (1, None, 1)
    assert record.ranks[0].samples == 8000
    (point,) = scale_points([record.spec], {record.spec.name: record}, ())
    assert (point.world_size, point.batch_per_gpu, point.global_batch) == (2, 64, 128)


# In the manner of guides for Slurm: rank, world and place from what srun sets alone, address and port from the job.
FOR_SRUN = """
import os
rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
local_rank, per_node = int(os.environ.get("SLURM_LOCALID", 0)), int(os.environ["SLURM_GPUS_ON_NODE"])
assert rank == int(os.environ["SLURM_NODEID"]) * per_node + local_rank
assert size == int(os.environ["SLURM_NNODES"]) * per_node
os.environ["MASTER_ADDR"] = os.environ["SLURM_JOB_NODELIST"].split(",")[0]
os.environ["MASTER_PORT"] = str(10_000 + int(os.environ["SLURM_JOB_ID"][-4:]))
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
    del os.environ[name]
""" + LOOP.replace('"gloo"', '"gloo", rank=rank, world_size=size')


def test_a_script_for_srun_can_be_tried_without_slurm(here: Here) -> None:
    record = here.run(FOR_SRUN, "2x1", launcher="srun", args=("4",))
    assert record.status == "ok", record.failure
    assert sum(rank.samples for rank in record.ranks) == 960
