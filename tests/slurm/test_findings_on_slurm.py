"""Findings on two nodes of a real Slurm: the node that the other waits for, and a clean run."""

from __future__ import annotations

import pytest
from cluster import Cluster
from ddp_ladder.records.record import Record, read_record
from project_copy import copy_project
from scales import GPU_SITE, prepare, salloc, scale_job

JOB = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4", "--mem=8000", "--gres=gpu:1"]
STEP_S = 0.05
SLOWER_S = 0.1
STEPS = 100
SCRIPT = f"""
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# Before other tests on this machine: one that takes a rank's turn makes its node slow, which is a finding.
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
dist.init_process_group("gloo")
rank, wrong = dist.get_rank(), "WRONG" in os.environ
data = TensorDataset(torch.randn({STEPS * 16}, 64), torch.randint(0, 10, ({STEPS * 16},)))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader.sampler.set_epoch(0)
for features, labels in loader:
    time.sleep({STEP_S})  # a computation that leaves the machine to other tests
    if wrong and rank == 1:
        time.sleep({SLOWER_S})
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(features), labels).backward()
    optimizer.step()
dist.destroy_process_group()
"""
pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def records(cluster_without_accounting: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """The records of a clean run and of one with a slow rank, made in one job."""
    checkout = copy_project(tmp_path_factory.mktemp("findings") / "project")
    site = {**GPU_SITE, "node": {**GPU_SITE["node"], "gpus": 1}, "launcher": "srun"}
    prepare(
        checkout,
        SCRIPT,
        "2x1",
        site,
        measure={"warmup_steps": 10, "min_steps": 50, "plain_baseline": False},
        repeats=1,
        preflight={"enabled": False},
        monitor={"every_s": 0.25},
        variants={"default": {}, "wrong": {"env": {"WRONG": "yes"}, "reason": "a slow rank"}},
    )
    salloc(cluster_without_accounting, checkout, JOB, scale_job("2x1"))
    runs = checkout.results / "runs"
    return {name: read_record(runs / name / "weak/2x1/r1/record.json") for name in ("default", "wrong")}


def kinds(record: Record) -> set[str]:
    """Return the findings but that of other processes: other tests run on this machine at the same time."""
    assert record.usage is not None
    return {each.kind for each in record.usage.findings} - {"other processes"}


def test_a_clean_run_gives_no_finding(records: dict[str, Record]) -> None:
    record = records["default"]
    assert record.failure is None
    assert record.usage is not None
    assert [node.is_enough for node in record.usage.nodes] == [True, True]
    assert kinds(record) == set()


def test_the_node_that_the_other_waits_for_is_named(records: dict[str, Record]) -> None:
    record = records["wrong"]
    assert record.usage is not None
    (found,) = (each for each in record.usage.findings if each.kind == "slow node")
    assert found.node == record.world.nodes[1]
    assert "rank 1" in found.in_words
    assert kinds(record) == {"slow node"}
