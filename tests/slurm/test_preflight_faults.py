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
from pathlib import Path
from typing import Any

import machines
import pytest
from cluster import Cluster
from cluster_config import Spec
from ddp_ladder.common.files import SCRIPTS
from ddp_ladder.node.software import QUERY
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.preflight.directory import facts_by_node
from ddp_ladder.preflight.node_findings import node_findings
from ddp_ladder.records.raw_models import Job, read_run_file
from ddp_ladder.run.nodes import ThisMachine
from ddp_ladder.run.preflight import PreflightOf
from ddp_ladder.settings.keys import Slurm
from make_records import make_spec
from project_copy import Checkout, copy_project
from scales import MEETING, prepare, salloc, scale_job

pytestmark = pytest.mark.slurm

CPUS = os.cpu_count() or 1
TWO_GPUS = "".join(f"GPU-{k}, NVIDIA RTX A5000, 590.44.01, 230.00, 4\\n" for k in (0, 1))
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
    interface: Any = "ib0"
    cpus: int = CPUS
    hosts: tuple[str, str] | None = None
    ip: tuple[str, str] | None = None
    listener: bool = False


FAULTS = {
    "interface missing": Fault(
        "node2", "no interface ib9 with an IPv4 address on node2", interface={"node1": "ib0", "node2": "ib9"}
    ),
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


@pytest.fixture(scope="module")
def plans() -> dict[str, str]:
    return {}


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


def configure(checkout: Checkout, fault: Fault, plans: dict[str, str]) -> None:
    """Write the plan. plans: by site; several faults share one."""
    site = {
        "site": "test",
        "node": {"gpus": 1, "device": "cpu", "cpus": fault.cpus, "memory_mb": 4000},
        "network": {"interface": fault.interface},
        "launcher": "srun",
    }
    plan, key = checkout.results / "plan.json", json.dumps(site)
    if key not in plans:
        prepare(checkout, MEETING, "2x1", site, preflight={"enabled": True, "timeout_s": TIMEOUT_S})
        plans[key] = plan.read_text()
    plan.parent.mkdir(exist_ok=True)
    plan.write_text(plans[key])


def programs(cluster: Cluster) -> set[int]:
    """Return processes of the cluster that are Python programs of the ladder, or commands of a user."""
    found = set()
    for pid, root in machines.clusters_of_processes().items():
        if root == str(cluster.root):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
            except OSError:
                continue
            if str(SCRIPTS.name) in command and "python" in command:
                found.add(pid)
    return found


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_and_no_run_is_started(
    two_nodes: Cluster, checkout: Checkout, plans: dict[str, str], name: str
) -> None:
    fault = FAULTS[name]
    shutil.rmtree(checkout.results, ignore_errors=True)
    configure(checkout, fault, plans)
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
    assert programs(two_nodes) == set()


def test_fewer_gpus_with_a_fake_nvidia_smi(two_nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's --gpus-per-task=1 leaves one GPU to each process; its GPUs are null devices here."""
    monkeypatch.chdir(tmp_path)
    nvidia_smi = tmp_path / "nvidia-smi"
    nvidia_smi.write_text(f'#!/bin/sh\n[ "$*" = "{" ".join(QUERY)}" ] && printf "{TWO_GPUS}"\n')
    nvidia_smi.chmod(0o755)
    spec = make_spec("1x2", device="cuda")
    job = ScaleJob("stage2", spec.scale, 20, (spec,), cpus=1, slurm=Slurm())
    preflight = PreflightOf(job, tmp_path / "results", ThisMachine("local-7"), end_s=5.0)
    identity = Job(id="local-7", attempt=1, run_id="7")
    preflight.prepare(identity)
    preflight.write_run_file(identity, "nodes")
    srun = ["srun", "--nodes=1", "--ntasks=1", "--gpus-per-task=1"]
    node = [sys.executable, str(SCRIPTS / "preflight_node.py"), "--run", str(preflight.directory.path)]
    two_nodes.run([*srun, *node], cwd=tmp_path, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    run = read_run_file(preflight.directory)
    found = node_findings(spec, job, facts_by_node(preflight.directory, run))
    assert [each.measured for each in found if each.severity == "error"] == [
        "1 of 2 GPUs visible (CUDA_VISIBLE_DEVICES=0)"
    ]
    assert "--gpus-per-task" in found[0].next
