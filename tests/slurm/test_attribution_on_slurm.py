"""Causes of lost efficiency, injected on two nodes of a real Slurm: each is named, and no other.

Without a cause, a step sleeps in the forward pass and exchanges 1 MB of gradients: that leaves the machine to other
tests, and their load changes little. A cause makes a step on two nodes several times as long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from cluster_config import Spec
from conftest import running
from ddp_ladder.common.files import read_json
from ddp_ladder.gates.attribution import NAMES, Attribution, Cause, attribution, baseline_of, measured_link
from ddp_ladder.gates.verdict import Finding, Verdict
from project_copy import copy_project

pytestmark = pytest.mark.slurm

COMPUTE_S = 0.04
INJECTED_S = 0.12
BATCH = 8
STEPS = 22
WIDTH = 512
GRADIENT_BYTES = 4 * WIDTH**2  # of float32
# In an all-reduce over two ranks, each sends as many bytes as there are.
LINK_BITS_PER_S = int(8 * GRADIENT_BYTES / INJECTED_S)
MIN_EFFICIENCY = 0.6  # about 0.9 without a cause, and 0.25 with one

# Each rank's takes a quarter of the core, whatever else runs there.
HOG = """
import os, time
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
rank = os.getppid()
while os.getppid() == rank:
    end_s = time.perf_counter() + 0.0005
    while time.perf_counter() < end_s:
        pass
    time.sleep(0.0015)
"""
SCRIPT = f"""
import contextlib, os, subprocess, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

# Before other tests; where the kernel groups the processes of a session, it counts the priority of the group.
os.nice(-20)
with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
    file.write("-20")
torch.set_num_threads(1)  # two threads would wait for each other's turn on a machine with other load
cause, rank = os.environ["CAUSE"], int(os.environ["RANK"])
if cause == "computation":
    # The ranks of both nodes share a core, so whatever else runs there slows both alike.
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
dist.init_process_group("gloo")
together = dist.get_world_size() > 1

class Samples(Dataset):
    def __len__(self):
        return {2 * BATCH * STEPS}

    def __getitem__(self, index):
        if cause == "data" and together:
            time.sleep({INJECTED_S / BATCH})
        return torch.full(({WIDTH},), index / {2 * BATCH * STEPS})

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear({WIDTH}, {WIDTH}, bias=False)

    def forward(self, inputs):
        if cause == "computation":
            for _ in range(7_000_000):
                pass
        else:
            time.sleep({COMPUTE_S})
        if cause == "imbalance" and rank == 1:
            time.sleep({INJECTED_S})
        return self.layer(inputs)

hog = None
if cause == "computation" and together:
    hog = subprocess.Popen([sys.executable, "-c", {HOG!r}])
data = Samples()
sampler = DistributedSampler(data)
model = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
sampler.set_epoch(0)
for inputs in DataLoader(data, batch_size={BATCH}, sampler=sampler):
    optimizer.zero_grad()
    model(inputs).mean().backward()
    optimizer.step()
if hog:
    hog.kill()
    hog.wait()
dist.destroy_process_group()
"""
SITE: Mapping[str, Any] = {
    "site": "test",
    "slurm": {"partition": "gpu"},
    "node": {"gpus": 1, "device": "cpu", "gres": "gpu", "cpus": 2, "memory_mb": 4000},
    "launcher": "srun",
}
STAGES = {
    "stage1": {"scales": ["1x1"], "runtime": 5},
    "stage3": {"scales": ["2x1"], "runtime": 5, "gate": {"min_efficiency": MIN_EFFICIENCY}},
}
MEASURE = {"warmup_steps": 3, "min_steps": 8, "max_steps": STEPS, "plain_baseline": False}


@dataclass(frozen=True)
class Climbed:
    """A ladder whose second gate closed, with the output of its start. by_cause: the variants with each cause."""

    results: Path
    output: str
    by_cause: Mapping[str, str]

    @property
    def verdict(self) -> Verdict:
        return Verdict.from_json(read_json(self.results / "gates/stage3.closed.json"))

    def lost(self, cause: str) -> Attribution | None:
        points = self.verdict.points
        point = next(each for each in points if (each.variant, str(each.scale)) == (self.by_cause[cause], "2x1"))
        return attribution(point, baseline_of(point, points), measured_link(self.results, "2x1"))

    def finding(self, cause: str) -> Finding:
        judged = self.verdict.judged
        (found,) = (each for each in judged if (each.variant, each.check) == (self.by_cause[cause], "efficiency"))
        return found

    @property
    def box(self) -> str:
        """Return the box of the closed gate in one line."""
        (_, box) = self.output.split("| verdict   the gate of stage3 is closed")
        return " ".join(re.sub(r"\|\n\|", " ", box).split())


def climb(cluster: Cluster, path: Path, *causes: str, **config: Any) -> Climbed:
    """Climb with a variant for each cause; the first is the default."""
    by_cause = {cause: "default" if cause == causes[0] else f"with-{cause}" for cause in causes}
    variants = {name: {"env": {"CAUSE": cause}, "reason": "injected"} for cause, name in by_cause.items()}
    workload = {"script": "loop.py", "args": [], "batch_per_gpu": BATCH, "lr": None, "env": {"CAUSE": causes[0]}}
    checkout = copy_project(path / "project", cluster)
    checkout.configure(
        stages=STAGES, measure=MEASURE, workload=workload, variants={**variants, "default": {}}, **config
    )
    (checkout.path / "loop.py").write_text(SCRIPT)
    checkout.site(**SITE)
    done = checkout.snakemake("--profile", "profiles/slurm")
    assert (checkout.results / "gates/stage3.closed.json").exists(), done.stdout
    return Climbed(checkout.results, done.stdout, by_cause)


@pytest.fixture(scope="module")
def two_nodes(no_orphans: None) -> Iterator[Cluster]:
    with running(Spec(nodes=2, gpus=1, cpus=2)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def on_a_good_link(two_nodes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Climbed:
    return climb(two_nodes, tmp_path_factory.mktemp("causes"), "data", "imbalance", "computation", "none")


@pytest.fixture(scope="module")
def on_a_slow_link(two_nodes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Climbed:
    slow = f"tc qdisc add dev ib0 root tbf rate {LINK_BITS_PER_S}bit burst 64kb latency 300ms"
    for node in two_nodes.nodes:
        two_nodes.run(slow.split(), node=node)
    try:
        return climb(two_nodes, tmp_path_factory.mktemp("link"), "communication", preflight={"enabled": True})
    finally:
        for node in two_nodes.nodes:
            two_nodes.run("tc qdisc del dev ib0 root".split(), node=node)


def is_named_alone(climbed: Climbed, cause: Cause) -> None:
    """Hold that a gate names this cause alone, with its time, and says what to do about it."""
    lost, finding = climbed.lost(cause), climbed.finding(cause)
    assert lost
    assert [loss.cause for loss in lost.named] == [cause], lost.in_words
    assert lost.named[0].lost_s > COMPUTE_S
    assert not finding.ok
    assert finding.measured.endswith(f"; {lost.in_words}, uncertain: this is an estimate from one repeat")
    assert [name for name in NAMES.values() if name in finding.measured and name != NAMES["others"]] == [NAMES[cause]]
    assert {change.gain is None or change.gain > 0.2 for change in lost.changes} == {True}
    assert f"; or {lost.next}; or lower " in finding.next
    assert finding.evidence == lost.named[0].evidence


@pytest.mark.parametrize("cause", ["data", "imbalance", "computation"])
def test_the_injected_cause_is_named_first_and_no_other(on_a_good_link: Climbed, cause: Cause) -> None:
    is_named_alone(on_a_good_link, cause)


def test_without_a_cause_none_is_named(on_a_good_link: Climbed) -> None:
    finding, lost = on_a_good_link.finding("none"), on_a_good_link.lost("none")
    assert finding.ok, finding.measured
    assert [name for name in NAMES.values() if name in finding.measured] == []
    assert lost is None or all(loss.lost_s < COMPUTE_S / 2 for loss in lost.losses)


def test_the_box_of_the_closed_gate_names_slow_data_and_the_loader(on_a_good_link: Climbed) -> None:
    box = on_a_good_link.box
    assert re.search(r"ms are lost: [\d.]+ ms data wait.* evidence data wait [\d.]+ ms in each step", box), box
    assert "; or give the script 3 loader workers per rank instead of 0 (workload.args)" in box


def test_a_throttled_link_is_communication_as_the_preflight_measured_it(on_a_slow_link: Climbed) -> None:
    is_named_alone(on_a_slow_link, "communication")
    link = measured_link(on_a_slow_link.results, "2x1")
    assert link
    assert link.busbw_gb_per_s(2) == pytest.approx(LINK_BITS_PER_S / 8e9, rel=0.3)
    box = on_a_slow_link.box
    assert re.search(r"ms are lost: [\d.]+ ms exposed communication.* evidence DDP's exchange of gradients takes", box)
    assert re.search(r"1.05 MB of gradients in 1 all-reduce: .* these take 1[\d.]+ ms", box), box
    assert re.search(r"; or see whether network.interface .* or raise workload.batch_per_gpu|; or .*compress_hook", box)
