"""Meetings on this machine's loopback interface: strangers on the port, and what is left afterwards."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest
from ddp_ladder.preflight import mesh
from ddp_ladder.preflight.mesh import Meeting, meet, peers
from ddp_ladder.preflight.node_facts import port_facts
from ddp_ladder.preflight.node_models import MeshFacts

HOST = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def node(port: int, rank: int, token: str = "job 7", nodes: int = 2) -> Callable[[], MeshFacts]:
    """Start a node; return a function that waits for what it saw."""
    found: list[MeshFacts | None] = []
    meeting = Meeting(["localhost"] * nodes, rank, (HOST, port), token, "auto")
    thread = threading.Thread(target=lambda: found.append(meet(meeting, 60)))
    thread.start()

    def wait() -> MeshFacts:
        thread.join()
        assert found[0] is not None
        return found[0]

    return wait


def say(port: int, text: bytes) -> bytes:
    """Connect as soon as somebody listens, say this, and return the answer."""
    while True:
        try:
            with socket.create_connection((HOST, port)) as stranger:
                stranger.sendall(text)
                return stranger.recv(1000)
        except ConnectionRefusedError:
            continue


def test_two_jobs_with_one_port_and_other_strangers_are_named_and_do_not_disturb() -> None:
    port = free_port()
    head = node(port, 0)
    assert b"job 7" in say(port, b"GET / HTTP/1.1\n")
    other = node(port, 1, token="job 8")()
    other_head = node(port, 0, token="job 8")()
    last = node(port, 1)()
    seen = head()
    assert (seen.met, seen.missing, last.met, last.missing) == (True, (), True, ())
    assert [link.connected for link in (*seen.links, *last.links)] == [True, True]
    assert seen.foreign == (
        f"a process on {HOST} sent 'GET / HTTP/1.1'",
        f"a process on {HOST} belongs to another preflight: job 8",
    )
    assert other.error == "another program listens there: it belongs to another preflight: job 7"
    assert other_head.error == "Address already in use"
    assert (other.met, other_head.met) == (False, False)


def test_the_port_is_free_after_the_meeting() -> None:
    port = free_port()
    waits = [node(port, rank, nodes=3) for rank in range(3)]
    assert all(wait().met for wait in waits)
    assert port_facts(HOST, port).free
    with socket.socket() as without_options:
        without_options.bind((HOST, port))


def test_a_single_node_meets_nobody() -> None:
    assert meet(Meeting(["localhost"], 0, (HOST, free_port()), "job 7", "auto"), 60) is None


def test_more_nodes_than_are_tested_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "ALL_PAIRS", 3)
    monkeypatch.setattr(mesh, "RANDOM_PEERS", 1)
    port = free_port()
    waits = [node(port, rank, nodes=6) for rank in range(6)]
    for rank, seen in enumerate(wait() for wait in waits):
        assert (seen.met, seen.missing) == (True, ())
        assert [link.connected for link in seen.links] == [True] * len(peers(6, rank, "job 7"))
        assert 1 <= len(seen.links) <= 2


@pytest.mark.parametrize(
    ("interface", "error"),
    [("ib9", "no interface ib9"), ("auto", "Connection refused")],
    ids=["no interface", "no head"],
)
def test_a_node_that_cannot_meet_says_why(interface: str, error: str) -> None:
    seen = meet(Meeting(["localhost"] * 2, 1, (HOST, free_port()), "job 7", interface), timeout_s=0.6)
    assert seen is not None
    assert (seen.met, seen.links, seen.clock) == (False, (), None)
    assert error in str(seen.error)
