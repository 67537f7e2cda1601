"""The facts of this machine, read for real, and what nvidia-smi tells."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from ddp_ladder.node.launch import free_port, node_name
from ddp_ladder.preflight.nodes import (
    HeadServer,
    NodeFacts,
    collect,
    directory_facts,
    interface_facts,
    is_seen,
    reach_head,
)
from make_preflight import run_file
from make_records import make_spec

HOST = "127.0.0.1"


def facts(directory: Path, port: int | None = None) -> NodeFacts:
    (directory / "marker").touch()
    return collect(run_file(make_spec("1x2"), directory, HOST, port or free_port("facts")), 0, directory / "marker")


def test_this_machine(tmp_path: Path) -> None:
    found = facts(tmp_path)
    assert (found.node, found.host, found.node_rank) == (node_name(), socket.gethostname(), 0)
    assert found.cpus == len(os.sched_getaffinity(0))
    assert found.marker_seen is True
    assert found.gpus is None  # a CPU site
    assert found.link_error is None
    assert (found.interface.name, found.interface.address, found.interface.error) == ("lo", HOST, None)
    assert found.run_directory.error is None
    assert found.run_directory.free_bytes


def test_the_port_is_held_by_another_program(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        found = facts(tmp_path, port)
        threading.Thread(target=lambda: other.accept()[0].close(), daemon=True).start()
        with pytest.raises(OSError, match="another program listens there"):
            reach_head(HOST, (HOST, port), "token", time.monotonic() + 5)
    assert found.link_error == "Address already in use"


def test_nodes_reach_the_head() -> None:
    port, answered = free_port("head"), []
    until_s = time.monotonic() + 20

    def visit() -> None:
        reach_head(HOST, (HOST, port), "token", until_s)
        answered.append(True)

    visitors = [threading.Thread(target=visit) for _ in range(2)]
    visitors[0].start()  # it waits for the head
    time.sleep(0.2)
    server = HeadServer(HOST, port, "token", others=2)
    with pytest.raises(OSError, match="another program"):
        reach_head(HOST, (HOST, port), "token of another job", until_s)
    visitors[1].start()
    server.finish(until_s, lambda: False)
    for visitor in visitors:
        visitor.join(20)
    assert len(answered) == 2
    socket.create_server((HOST, port)).close()  # it is free again


def test_a_payload_that_does_not_arrive() -> None:
    def answer() -> None:
        connection, _ = listening.accept()
        connection.sendall(connection.recv(1000))
        connection.close()

    with socket.create_server((HOST, 0)) as listening:
        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(OSError, match="large packets do not arrive"):
            reach_head(HOST, listening.getsockname(), "token", time.monotonic() + 5)


def test_an_interface_that_is_missing_down_or_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = interface_facts("ib9", HOST, several=False)
    assert (missing.name, missing.address) == ("ib9", None)
    assert "no interface ib9 with an IPv4 address" in str(missing.error)
    assert interface_facts({"another": "ib0"}, HOST, several=False).name == "lo"
    assert interface_facts("lo", HOST, several=True).error == f"interface lo is loopback ({HOST})"
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {"lo": SimpleNamespace(isup=False)})
    assert interface_facts("lo", HOST, several=False).error == f"interface lo ({HOST}) is down"


def test_directories(tmp_path: Path) -> None:
    assert directory_facts(tmp_path / "not" / "yet").error is None
    assert directory_facts(Path("/proc")).error
    assert not is_seen(tmp_path / "marker", within_s=0.2)
