"""Findings on two nodes of a real Slurm: a leak with its rate, the node that the other waits for, and a clean run."""

from __future__ import annotations

import numpy as np
import pytest
from cluster import Cluster
from ddp_ladder.records.record import Record, read_record
from project_copy import copy_project
from scales import GPU_SITE, prepare, salloc, scale_job

JOB = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4", "--mem=8000", "--gres=gpu:1"]
LEAK_BYTES = 2_500_000
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
kept = []
loader.sampler.set_epoch(0)
for features, labels in loader:
    time.sleep({STEP_S})  # a computation that leaves the machine to other tests
    if wrong and rank == 0:
        kept.append(b"x" * {LEAK_BYTES})
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
    """The records of a clean run and of one that is wrong in two ways, made in one job."""
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
        variants={"default": {}, "wrong": {"env": {"WRONG": "yes"}, "reason": "a leak and a slow rank"}},
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
    assert [node.samples >= 9 for node in record.usage.nodes] == [True, True]
    assert kinds(record) == set()


def test_a_leak_is_found_with_its_rate(records: dict[str, Record]) -> None:
    record = records["wrong"]
    assert record.timing is not None
    assert record.usage is not None
    (found,) = (each for each in record.usage.findings if each.kind == "memory grows")
    assert found.node == record.world.nodes[0]
    assert "the job's memory of 8.4 GB (by node.memory_mb) is full in" in found.what
    node = record.usage.nodes[0]
    assert node.training_memory is not None
    steps_per_s = 1 / np.mean(record.timing.blocks_step_time_s)
    assert node.training_memory.growth_bytes_per_s == pytest.approx(LEAK_BYTES * steps_per_s, rel=0.2)


def test_the_node_that_the_other_waits_for_is_named(records: dict[str, Record]) -> None:
    record = records["wrong"]
    assert record.usage is not None
    (found,) = (each for each in record.usage.findings if each.kind == "slow node")
    assert found.node == record.world.nodes[1]
    assert "rank 1" in found.what
    assert kinds(record) == {"memory grows", "slow node"}
