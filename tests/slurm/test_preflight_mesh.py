"""The meeting of the preflight's nodes over real networks: four machines, without Slurm, whose links are broken."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import machines
import pytest
from cluster import Cluster, addresses, new_root, this_process
from cluster_config import Spec
from ddp_ladder.common.paths import SCRIPTS
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.preflight.finding import PreflightFinding
from ddp_ladder.preflight.node_findings import findings
from ddp_ladder.preflight.node_models import InterfaceFacts, MeshFacts, NodeFacts
from ddp_ladder.settings.cluster_keys import Slurm
from ddp_ladder.settings.terms import Scale
from make_preflight import INTERFACE, node_facts
from make_records import make_spec

pytestmark = pytest.mark.slurm

NODES = ("node1", "node2", "node3", "node4")
PORT = 23456
TIMEOUT_S = 24.0  # a third of it for all to come, a sixth for a link
NODE = """
import json, socket, sys, time
from ddp_ladder.preflight.mesh import Meeting, meet
from ddp_ladder.preflight.node_facts import interface_facts, port_facts, resolved
nodes, rank, head, port, timeout_s, ahead_s = json.loads(sys.argv[1])
taken = port_facts(head, port) if rank == 0 else None
seen = meet(Meeting(nodes, rank, (head, port), "job 7", "ib0"), timeout_s, lambda: time.time() + ahead_s)
print(json.dumps({
    "mesh": seen.model_dump(),
    "port": taken and taken.model_dump(),
    "interface": interface_facts("ib0", head).model_dump(),
    "host_addresses": resolved(socket.gethostname()),
    "sockets": [c.laddr for c in __import__("psutil").Process().net_connections() if c.status == "LISTEN"],
}))
"""


@pytest.fixture(scope="module")
def network(no_orphans: None) -> Iterator[Cluster]:
    spec = Spec(nodes=len(NODES))
    cluster = Cluster(new_root(None), spec, addresses(spec), this_process())
    try:
        cluster.write_files()
        cluster.start_login_node()
        for name in cluster.nodes:
            cluster.start_machine(name)
        yield cluster
    finally:
        cluster.down()


def meet(network: Cluster, ahead_s: float = 0.0, without: str = "") -> dict[str, dict[str, Any]]:
    """Let all nodes meet, except one; return what each found. ahead_s: of the clock of node2."""
    started = {}
    for rank, name in enumerate(NODES):
        if name == without:
            continue
        known = [NODES, rank, network.addresses["node1"], PORT, TIMEOUT_S, ahead_s if name == "node2" else 0.0]
        argv = network.command([sys.executable, "-c", NODE, json.dumps(known)], node=name)
        env = network.environment(PYTHONPATH=str(SCRIPTS), SLURMD_NODENAME=name)
        started[name] = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
    return {name: json.loads(process.communicate(timeout=90)[0]) for name, process in started.items()}


def judge(met: dict[str, dict[str, Any]]) -> tuple[PreflightFinding, ...]:
    """Return the findings; what is no matter of the network is that of healthy nodes."""
    of_all = INTERFACE.replace(mtu=1500)
    facts: dict[str, NodeFacts | None] = {name: node_facts(k, interface=of_all) for k, name in enumerate(NODES)}
    for name, found in met.items():
        healthy = facts[name]
        assert healthy is not None
        facts[name] = healthy.replace(
            interface=InterfaceFacts.from_json(found["interface"]),
            host_addresses=tuple(found["host_addresses"]),
            port=found["port"] and healthy.port and healthy.port.replace(**found["port"]),
        )
    mesh = {name: MeshFacts.from_json(met[name]["mesh"]) if name in met else None for name in NODES}
    job = ScaleJob("stage3", Scale(len(NODES), 2), 20, (), cpus=4, slurm=Slurm())
    return findings(make_spec(f"{len(NODES)}x2"), job, facts, mesh)


def told(met: dict[str, dict[str, Any]]) -> list[tuple[str, str | None, str]]:
    return [(each.level, each.node, each.what) for each in judge(met)]


def ip(network: Cluster, node: str, *commands: str) -> None:
    machines.ip(network.machine(node), *commands)


def test_healthy_nodes_meet_and_leave_nothing_open(network: Cluster) -> None:
    met = meet(network)
    assert told(met) == []
    for name, found in met.items():
        mesh = found["mesh"]
        assert (mesh["met"], mesh["missing"], mesh["foreign"]) == (True, [], [])
        assert {link["peer"] for link in mesh["links"]} == {*NODES} - {name}
        assert {link["address"] for link in mesh["links"]} == {
            network.addresses[link["peer"]] for link in mesh["links"]
        }
        assert all(link["payload_s"] > 0 for link in mesh["links"])
        assert mesh["names"][3]["addresses"] == [network.addresses["node4"]]
        assert found["sockets"] == []


def test_a_cut_link_a_wrong_clock_and_wrong_names(network: Cluster) -> None:
    """Faults of different nodes at once: each is told on its own."""
    four = network.addresses["node4"]
    ip(network, "node2", f"route add blackhole {four}/32")
    try:
        with (
            network.hosts_line("node3", f"{network.addresses['node1']} node1", "# node1"),
            network.hosts_line("node1", f"{network.addresses['node1']} node1", "127.0.1.1 node1"),
        ):
            met = meet(network, ahead_s=30.0)
    finally:
        ip(network, "node2", f"route delete blackhole {four}/32")
    name, link, host_name, clock = told(met)
    assert name == ("fail", "node3", "it does not resolve node1: unknown name")
    assert link[:2] == ("fail", "node2")
    assert link[2].startswith("cannot connect with node4: ")
    assert host_name == ("fail", "node1", "the host name node1 resolves to 127.0.1.1")
    assert clock == ("warn", "node2", "its clock is 30.0 s ahead of that of node1")


def test_an_interface_that_is_down_and_a_node_that_does_not_come(network: Cluster) -> None:
    ip(network, "node3", "link set ib0 down")
    try:
        met = meet(network, without="node4")
    finally:
        ip(network, "node3", "link set ib0 up")
    down, away = told(met)
    assert down == ("fail", "node3", f"interface ib0 ({network.addresses['node3']}) is down")
    assert away == ("fail", "node4", "it did not come to the meeting at node1")
    assert met["node1"]["mesh"]["missing"] == ["node3", "node4"]
    assert {link["connected"] for link in met["node1"]["mesh"]["links"]} == {True}


def test_another_program_on_the_port_of_the_head(network: Cluster) -> None:
    listen = f"import socket; s = socket.create_server(('0.0.0.0', {PORT})); print(1, flush=True); input()"
    argv = network.command([sys.executable, "-c", listen], node="node1")
    other = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == "1\n"
        met = meet(network)
    finally:
        other.communicate("end\n")
    ((level, node, what),) = told(met)
    assert (level, node) == ("fail", "node1")
    assert what.startswith(f"rendezvous port {PORT} is held by python")
    assert met["node4"]["mesh"]["error"] == "another program listens there: it sent nothing"


def test_mtus_that_differ_and_packets_that_vanish(network: Cluster) -> None:
    """node4 has another MTU; on the way to node2 and node3, which have 9000, a switch drops larger packets."""
    large = [f"link set {name} mtu 9000" for name in NODES[:3]]
    machines.ip(network.machine(), *large, "link set node3 mtu 1500")
    for name in NODES[:3]:
        # One segment to a packet: the bridge passes larger ones that the kernel has not cut yet.
        ip(network, name, "link set ib0 mtu 9000", "link set ib0 gso_max_segs 1")
    try:
        found = told(meet(network))
    finally:
        machines.ip(network.machine(), *(f"link set {name} mtu 1500" for name in NODES))
        for name in NODES:
            ip(network, name, "link set ib0 mtu 1500", "link set ib0 gso_max_segs 65535")
    assert ("warn", "node4", "MTU of ib0 is 1500, on the others 9000") in found
    lost = [each for each in found if each[0] == "fail"]
    assert lost, found
    assert all("large packets do not arrive" in what for _, _, what in lost)
    assert {word for _, node, what in lost for word in f"{node} {what}".replace(":", "").split()} >= {"node3"}
