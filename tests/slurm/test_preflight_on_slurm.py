"""The preflight in jobs of a real Slurm: it names the fault of a node and starts no run; and as a target of its own."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machines
import pytest
from cluster import Cluster
from cluster_config import Spec
from ddp_ladder.nodes.sampler import read_machines
from project_copy import NO_TORCH, ONE_STAGE, Checkout, copy_project
from scales import GPU_SITE, MEETING, prepare, salloc, scale_job

pytestmark = pytest.mark.slurm

CPUS = os.cpu_count() or 1
# A second network; the first is Slurm's, which needs it.
FAST = {"node1": "10.9.0.1", "node2": "10.9.0.2"}
# The network is the limit of what nodes exchange, as on a cluster: a faster one, and a busy CPU would be.
LIMIT = "tc qdisc replace dev ib0 root tbf rate {mbit}mbit burst 64kb latency 300ms"
USUAL, SLOW = (LIMIT.format(mbit=mbit) for mbit in (150, 30))


@dataclass
class Fault:
    """A fault, and the words that must name it. Of one node alone: tests/unit/preflight/test_node_findings.py."""

    node: str
    told: str
    scale: str = "2x1"
    interface: str = "ib0"
    place: str = ""  # if it is not the node alone
    on_node: tuple[str, str] | None = None  # commands that make the fault and undo it
    timeout_s: int = 18
    min_busbw_gb_per_s: float | None = None


FAULTS = {
    "head not reached": Fault(
        "node2",
        "node2 does not reach the head node1 at 10.9.0.1:",
        place="node[1-2]",  # either end of the link may be it
        interface="fast0",
        on_node=("ip route add blackhole 10.9.0.1/32", "ip route delete blackhole 10.9.0.1/32"),
    ),
    "slow link": Fault(
        "node3",
        "node3 is slow",
        scale="4x1",
        on_node=(SLOW, USUAL),
        min_busbw_gb_per_s=1000,
        timeout_s=60,
    ),
}


@pytest.fixture(scope="module")
def four_nodes(module_cluster: Callable[[Spec], Cluster]) -> Cluster:
    cluster = module_cluster(Spec(nodes=4, gpus=2, cpus=CPUS))
    machines.ip(cluster.machine(), "link add fast type bridge", "link set fast up")
    for name, address in FAST.items():
        node = cluster.machine(name)
        link = f"link add {name}fast type veth peer name fast0 netns {node.pid}"
        machines.ip(cluster.machine(), link, f"link set {name}fast master fast up")
        machines.ip(node, f"address add {address}/24 dev fast0", "link set fast0 up")
    for name in ("node1", "node2", "node3", "node4"):
        cluster.run(USUAL.split(), node=name)
    return cluster


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return copy_project(tmp_path_factory.mktemp("project"))


@contextmanager
def injected(cluster: Cluster, fault: Fault) -> Iterator[None]:
    with ExitStack() as stack:
        if fault.on_node:
            make, undo = (command.split() for command in fault.on_node)
            cluster.run(make, node=fault.node)
            stack.callback(cluster.run, undo, node=fault.node)
        yield


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_and_no_run_is_started(four_nodes: Cluster, checkout: Checkout, name: str) -> None:
    fault = FAULTS[name]
    shutil.rmtree(checkout.results, ignore_errors=True)
    site = {
        "site": "test",
        "node": {"gpus": 1, "device": "cpu", "cpus": CPUS, "memory_mb": 4000},
        "network": {"interface": fault.interface},
        "launcher": "srun",
    }
    wanted = {"enabled": True, "timeout_s": fault.timeout_s, "min_busbw_gb_per_s": fault.min_busbw_gb_per_s}
    prepare(checkout, MEETING, fault.scale, site, preflight=wanted)
    nodes = fault.scale.partition("x")[0]
    options = [f"--nodes={nodes}", "--ntasks-per-node=1", f"--cpus-per-task={CPUS}", "--mem=4000"]
    with injected(four_nodes, fault):
        printed = salloc(four_nodes, checkout, options, scale_job(fault.scale))
    result = result_of(checkout, fault.scale)
    failed = [finding for finding in result["findings"] if finding["severity"] == "error"]
    assert [(each["place"], fault.told in each["measured"]) for each in failed] == [
        (fault.place or fault.node, True)
    ], failed
    assert result["status"] == "failed"
    assert fault.told in printed
    if name == "slow link":  # of which 1.5 bytes have to cross for each byte of an all-reduce over four nodes
        assert result["beta_s_per_byte"] == pytest.approx(1.5 * 8 / 30e6, rel=0.3)
    record = checkout.record(f"default/weak/{fault.scale}/r1")
    assert (record["status"], record["job"]) == ("failed", None)
    assert fault.told in record["failure"]["why"]
    assert not list(checkout.results.glob("runs/**/run.json"))
    assert fault.scale == "4x1" or not list((checkout.results / "preflight/2x1/ranks").iterdir())
    four_nodes.await_idle()  # the job, and what Slurm does after it, has ended
    assert checkout.processes() == []


def result_of(checkout: Checkout, scale: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((checkout.results / f"preflight/{scale}.json").read_text())
    return found


def test_the_target_tests_the_scale_that_was_asked_for_and_trains_nothing(four_nodes: Cluster, tmp_path: Path) -> None:
    checkout = copy_project(tmp_path, four_nodes)
    stages = {**ONE_STAGE, "stage3": {"scales": ["2x1", "4x1"], "runtime": 5}}
    site = {**GPU_SITE, "node": {**GPU_SITE["node"], "cpus": CPUS}}
    checkout.set_up(NO_TORCH, site, stages=stages)  # preflight.enabled is false: it is asked for
    asked = checkout.snakemake("preflight", "--profile", "profiles/slurm", "--config", "preflight_scale=2x1")
    assert asked.returncode == 0, asked.stdout
    assert "stage3 2x1: preflight passed" in asked.stdout
    assert result_of(checkout, "2x1")["launcher"] == "torchrun"
    assert "busbw_gb_per_s" in asked.stdout
    (described,) = read_machines(checkout.results).values()
    assert [machine.node for machine in described] == [row["node"] for row in result_of(checkout, "2x1")["nodes"]]
    assert all("; ib0" in machine.in_words for machine in described)
    assert sorted(path.name for path in (checkout.results / "preflight").iterdir()) == ["2x1", "2x1.json"]
    assert not (checkout.results / "runs").exists()
    assert list((checkout.results / "jobs").glob("*.json")) == []
