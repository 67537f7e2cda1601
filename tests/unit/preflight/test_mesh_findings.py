"""What a meeting of nodes shows: the cause is named once, and its consequences are not."""

from __future__ import annotations

from typing import Any

from ddp_ladder.preflight.finding import PreflightFinding
from ddp_ladder.preflight.mesh import ALL_PAIRS, peers
from ddp_ladder.preflight.node_models import ClockFacts, MeshFacts, NameFacts
from make_preflight import INTERFACE, mesh_facts, node_facts
from test_node_findings import NODES, judge


def mesh(**changes: dict[str, Any]) -> dict[str, MeshFacts | None]:
    return {name: mesh_facts(int(name[4:]) - 1, NODES, **change) for name, change in changes.items()}


def links(rank: int, **changes: dict[str, Any]) -> dict[str, Any]:
    healthy = mesh_facts(rank, NODES).links
    return {"links": tuple(link.replace(**changes.get(link.peer, {})) for link in healthy)}


CUT = {"connected": False, "payload_s": None, "error": "no answer within 10 s"}
LOST = {"payload_s": None, "error": "no answer within 10 s"}


def only(found: tuple[PreflightFinding, ...]) -> tuple[str, str | None, str]:
    (one,) = found
    assert one.next
    assert one.wanted
    return one.level, one.node, one.what


def test_a_link_between_two_nodes_that_is_cut() -> None:
    seen = mesh(node2=links(1, node4=CUT), node4=links(3, node2=CUT))
    assert only(judge(mesh=seen)) == ("fail", "node2", "cannot connect with node4: no answer within 10 s")


def test_a_link_that_is_cut_in_one_direction() -> None:
    level, node, what = only(judge(mesh=mesh(node4=links(3, node2=CUT))))
    assert (level, node) == ("fail", "node2")
    assert "node4" in what


def test_a_node_that_no_other_reaches_is_named_alone() -> None:
    alone = {f"node{rank + 1}": links(rank, node3=CUT) for rank in (0, 1, 3)}
    seen = mesh(node3=links(2, node1=CUT, node2=CUT, node4=CUT), **alone)
    level, node, what = only(judge(mesh=seen))
    assert (level, node) == ("fail", "node3")
    assert "any other node" in what


def test_a_black_hole_for_large_packets() -> None:
    level, node, what = only(judge(mesh=mesh(node1=links(0, node3=LOST))))
    assert (level, node) == ("fail", "node1")
    assert "large packets do not arrive with node3" in what


def test_a_link_that_loses_packets() -> None:
    level, node, what = only(judge(mesh=mesh(node1=links(0, node3={"payload_s": 4.0}))))
    assert (level, node, what) == ("warn", "node1", "256 KiB to node3 and back took 4.0 s")


def test_a_clock_that_is_behind() -> None:
    seen = mesh(node2={"clock": ClockFacts(offset_s=-7.5, uncertainty_s=0.01)})
    assert only(judge(mesh=seen)) == ("warn", "node2", "its clock is 7.5 s behind that of node1")
    assert judge(mesh=mesh(node2={"clock": ClockFacts(offset_s=1.5, uncertainty_s=0.9)})) == ()  # cannot be told


def test_a_name_that_does_not_resolve_and_one_that_is_loopback() -> None:
    unknown = NameFacts(name="node1", addresses=(), error="unknown name")
    assert only(judge(mesh=mesh(node3={"names": (unknown,)})))[1:] == (
        "node3",
        "it does not resolve node1: unknown name",
    )
    loopback = NameFacts(name="node1", addresses=("127.0.1.1",), error=None)
    assert only(judge(mesh=mesh(node3={"names": (loopback,)})))[1:] == ("node3", "it resolves node1 to 127.0.1.1")


def test_a_node_that_does_not_reach_the_head() -> None:
    away = {"met": False, "error": "no route to host", "links": (), "clock": None}
    others = {f"node{rank + 1}": {"missing": ("node3",)} for rank in (0, 1, 3)}
    level, node, what = only(judge(mesh=mesh(node3=away, **others)))
    assert (level, node) == ("fail", "node3")
    assert what == "it did not reach the head node1 at 10.0.0.1:23456: no route to host"


def test_consequences_of_an_interface_that_is_down_are_not_named() -> None:
    away = {"met": False, "error": "network is unreachable", "links": (), "clock": None}
    down = node_facts(2, interface=INTERFACE.replace(up=False))
    seen = mesh(node3=away, node1=links(0, node3=CUT), node2=links(1, node3=CUT), node4=links(3, node3=CUT))
    assert only(judge({"node3": down}, seen))[1:] == ("node3", "interface ib0 (10.0.0.1) is down")


def test_a_node_without_any_answer_is_named_once() -> None:
    level, node, what = only(judge({"node4": None}, {"node4": None}))
    assert (level, node, what) == ("fail", "node4", "it left no answer")


def test_nobody_meets_at_a_head_whose_port_is_taken() -> None:
    port = node_facts().port
    assert port is not None
    taken = node_facts(port=port.replace(free=False, holder="nc (process 7 of bob)", error="Address already in use"))
    away = {"met": False, "error": "another program listens there: it sent nothing", "links": (), "clock": None}
    level, node, what = only(judge({"node1": taken}, mesh(**{f"node{rank + 1}": away for rank in range(NODES)})))
    assert (level, node) == ("fail", "node1")
    assert "nc (process 7 of bob)" in what


def test_a_stranger_that_connects() -> None:
    level, node, what = only(judge(mesh=mesh(node1={"foreign": ("a process on 10.0.0.9 sent 'hello'",)})))
    assert (level, node) == ("warn", "node1")
    assert "10.0.0.9 sent 'hello'" in what


def test_up_to_32_nodes_test_all_pairs_and_more_a_ring_and_random_pairs() -> None:
    assert peers(3, 1, "job") == (0, 2)
    assert len(peers(ALL_PAIRS, 5, "job")) == ALL_PAIRS - 1
    many = [peers(200, rank, "job") for rank in range(200)]
    assert all(rank not in those and (rank + 1) % 200 in those for rank, those in enumerate(many))
    assert max(map(len, many)) <= 5
    assert many == [peers(200, rank, "job") for rank in range(200)]
    assert many != [peers(200, rank, "another job") for rank in range(200)]
