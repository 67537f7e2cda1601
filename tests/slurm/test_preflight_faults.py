"""Faults of a node that the preflight of a job finds: it names the fault, no run is started, and nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import machines
import pytest
from cluster import Cluster
from cluster_config import Spec
from project_copy import Checkout, copy_project
from scales import MEETING, prepare, salloc, scale_job

pytestmark = pytest.mark.slurm

CPUS = os.cpu_count() or 1
# A second network; the first is Slurm's, which needs it.
FAST = {"node1": "10.9.0.1", "node2": "10.9.0.2"}
TIMEOUT_S = 18
# Takes the port of the preflight as soon as its job has chosen it.
LISTENER = """
import json, pathlib, socket, sys, time
file, until_s = pathlib.Path(sys.argv[1]), time.monotonic() + 60
while not file.exists() and time.monotonic() < until_s:
    time.sleep(0.005)
listening = socket.create_server(("0.0.0.0", json.loads(file.read_text())["rendezvous"]["port"]))
print("up", flush=True)
input()
"""


@dataclass
class Fault:
    """A fault, and the words that must name it. hosts (a line, and what replaces it), ip (commands that
    make the fault and undo it): of node2."""

    node: str | None
    told: str
    interface: str = "ib0"
    cpus: int = CPUS
    hosts: tuple[str, str] | None = None
    ip: tuple[str, str] | None = None
    listener: bool = False


FAULTS = {
    "host name": Fault(
        "node2", "the host name node2 resolves to 127.0.1.1", hosts=("{node2} node2", "127.0.1.1 node2")
    ),
    "head not reached": Fault(
        "node2",
        "it does not reach the head at 10.9.0.1:",
        interface="fast0",
        ip=("route add blackhole 10.9.0.1/32", "route delete blackhole 10.9.0.1/32"),
    ),
    "port": Fault("node1", "Address already in use", listener=True),
    "cores": Fault("node1, node2", f"the job step has {CPUS} CPU", cpus=2 * CPUS),
}


@pytest.fixture(scope="module")
def two_nodes(module_cluster: Callable[[Spec], Cluster]) -> Cluster:
    cluster = module_cluster(Spec(nodes=2, gpus=2, cpus=2 * CPUS))
    machines.ip(cluster.machine(), "link add fast type bridge", "link set fast up")
    for name, address in FAST.items():
        node = cluster.machine(name)
        link = f"link add {name}fast type veth peer name fast0 netns {node.pid}"
        machines.ip(cluster.machine(), link, f"link set {name}fast master fast up")
        machines.ip(node, f"address add {address}/24 dev fast0", "link set fast0 up")
    return cluster


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return copy_project(tmp_path_factory.mktemp("project"))


@contextmanager
def injected(cluster: Cluster, checkout: Checkout, fault: Fault) -> Iterator[None]:
    with ExitStack() as stack:
        if fault.hosts:
            stack.enter_context(
                cluster.hosts_line("node2", *(text.format(**cluster.addresses) for text in fault.hosts))
            )
        if fault.ip:
            machines.ip(cluster.machine("node2"), fault.ip[0])
            stack.callback(machines.ip, cluster.machine("node2"), fault.ip[1])
        if fault.listener:
            file = checkout.results / "preflight/2x1/run.json"
            argv = cluster.command([sys.executable, "-c", LISTENER, str(file)], node="node1")
            listener = stack.enter_context(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            stack.callback(listener.communicate, b"end\n")
        yield


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_and_no_run_is_started(two_nodes: Cluster, checkout: Checkout, name: str) -> None:
    fault = FAULTS[name]
    shutil.rmtree(checkout.results, ignore_errors=True)
    site = {
        "site": "test",
        "node": {"gpus": 1, "device": "cpu", "cpus": fault.cpus, "memory_mb": 4000},
        "network": {"interface": fault.interface},
        "launcher": "srun",
    }
    prepare(checkout, MEETING, "2x1", site, preflight={"enabled": True, "timeout_s": TIMEOUT_S})
    options = ["--nodes=2", "--ntasks-per-node=1", f"--cpus-per-task={fault.cpus}", "--mem=4000"]
    with injected(two_nodes, checkout, fault):
        printed = salloc(two_nodes, checkout, options, scale_job("2x1"))
    result = json.loads((checkout.results / "preflight/2x1.json").read_text())
    failed = [finding for finding in result["findings"] if finding["severity"] == "error"]
    assert [(each["place"], fault.told in each["measured"]) for each in failed] == [(fault.node, True)], failed
    assert result["status"] == "failed"
    assert fault.told in printed
    record = checkout.record("default/weak/2x1/r1")
    assert (record["status"], record["job"]) == ("failed", None)
    assert fault.told in record["failure"]["why"]
    assert not (checkout.results / "runs/default/weak/2x1/r1/run.json").exists()
    assert not list((checkout.results / "preflight/2x1/ranks").iterdir())
    two_nodes.await_idle()  # the job, and what Slurm does after it, has ended
    assert checkout.processes() == []
