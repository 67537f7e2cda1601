"""A throttled link between two nodes of a real Slurm: the gate names communication alone, as the preflight measured it.

The other causes need no Slurm: tests/workflow/test_attribution_of_real_runs.py, and benchmarks/attribution.py has all.
A step sleeps in the forward pass and exchanges 1 MB of gradients: that leaves the machine to other tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Cluster
from cluster_config import Spec
from ddp_ladder.common.files import read_json
from ddp_ladder.gates.attribution import attribution, baseline_of, measured_preflight
from ddp_ladder.gates.verdict import Verdict
from project_copy import ONE_STAGE, copy_project

pytestmark = pytest.mark.slurm

COMPUTE_S = 0.04
INJECTED_S = 0.12
BATCH = 8
STEPS = 22
WIDTH = 512
GRADIENT_BYTES = 4 * WIDTH**2  # of float32
# In an all-reduce over two ranks, each sends as many bytes as there are.
LINK_BITS_PER_S = int(8 * GRADIENT_BYTES / INJECTED_S)
SCRIPT = f"""
import contextlib, os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

# Before other tests; where the kernel groups the processes of a session, it counts the priority of the group.
os.nice(-20)
with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
    file.write("-20")
torch.set_num_threads(1)  # two threads would wait for each other's turn on a machine with other load
dist.init_process_group("gloo")

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear({WIDTH}, {WIDTH}, bias=False)

    def forward(self, inputs):
        time.sleep({COMPUTE_S})
        return self.layer(inputs)

data = torch.randn({2 * BATCH * STEPS}, {WIDTH})
sampler = DistributedSampler(data)
model = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
sampler.set_epoch(0)
for inputs in DataLoader(data, batch_size={BATCH}, sampler=sampler):
    optimizer.zero_grad()
    model(inputs).mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_a_throttled_link_is_communication_as_the_preflight_measured_it(
    make_cluster: Callable[[Spec], Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(Spec(nodes=2, gpus=1, cpus=2))
    for node in cluster.nodes:
        slow = f"tc qdisc add dev ib0 root tbf rate {LINK_BITS_PER_S}bit burst 64kb latency 300ms"
        cluster.run(slow.split(), node=node)
    checkout = copy_project(tmp_path / "project", cluster)
    shape = {"gpus": 1, "device": "cpu", "gres": "gpu", "cpus": 2, "memory_mb": 4000}
    of_two_nodes = {"scales": ["2x1"], "runtime": 5, "gate": {"min_efficiency": 0.6}}  # it is about 0.25
    checkout.set_up(
        SCRIPT,
        {"site": "test", "slurm": {"partition": "gpu"}, "node": shape, "launcher": "srun"},
        stages={**ONE_STAGE, "stage3": of_two_nodes},
        measure={"warmup_steps": 3, "min_steps": 8, "max_steps": STEPS, "plain_baseline": False},
        preflight={"enabled": True},
    )
    done = checkout.snakemake("--profile", "profiles/slurm")
    closed = checkout.results / "gates/stage3.closed.json"
    assert closed.exists(), done.stdout

    verdict, preflight = Verdict.from_json(read_json(closed)), measured_preflight(checkout.results, "2x1")
    assert preflight
    assert preflight.beta_s_per_byte
    assert 1e-9 / preflight.beta_s_per_byte == pytest.approx(LINK_BITS_PER_S / 8e9, rel=0.3)
    point = next(each for each in verdict.points if str(each.scale) == "2x1")
    lost = attribution(point, baseline_of(point, verdict.points), preflight)
    assert lost
    assert [loss.cause for loss in lost.named] == ["communication"], lost.in_words
    assert lost.named[0].lost_s > COMPUTE_S
    (found,) = (each for each in verdict.judged if each.check == "efficiency")
    assert not found.ok
    # On a busy machine, steps that are not steady may be a further doubt.
    assert f"; {lost.in_words}, uncertain: this is an estimate from one repeat" in found.measured

    box = " ".join(re.sub(r"\|\n\|", " ", done.stdout.partition("| verdict   the gate of stage3 is closed")[2]).split())
    assert re.search(r"ms are lost: [\d.]+ ms exposed communication.* evidence DDP's exchange of gradients takes", box)
    assert re.search(r"1.05 MB in 1 all-reduce take 1[\d.]+ ms", box), box
    network, other = lost.changes[:2]
    assert "network.interface" in network.what
    # Both halve the exchange: which of them comes first, a millisecond decides.
    assert re.search(r"workload\.batch_per_gpu|compress_hook", other.what)
    assert f" next one of: 1. {network.in_words} 2. {other.in_words} 3. " in box, box
