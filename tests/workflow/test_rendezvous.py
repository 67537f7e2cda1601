"""How torchrun's agents meet: in the nodes' order whatever the order of their starts, and only with each other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from ddp_ladder.node.launch import LOOPBACK, free_port
from ddp_ladder.platform import launchers
from make_records import make_spec
from patience import Patience, outputs_of
from project_copy import environment

WITNESS = """
import os, sys
keys = ("RANK", "GROUP_RANK", "LOCAL_RANK", "MASTER_PORT")
os.write(1, (" ".join([sys.argv[1], *(os.environ[key] for key in keys)]) + "\\n").encode())
"""

Start = Callable[[int, str], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the torchrun of a node of a 3x2 with a rendezvous id."""
    spec, port, started = make_spec("3x2"), free_port(str(tmp_path)), list[subprocess.Popen[str]]()
    script = tmp_path / "script.py"
    script.write_text(WITNESS)

    def of_node(node_rank: int, run_id: str = "run") -> subprocess.Popen[str]:
        options = launchers.Torchrun().words(spec, run_id, str(node_rank), LOOPBACK, str(port))
        argv = [sys.executable, *options, str(script), str(node_rank)]
        process = subprocess.Popen(
            argv, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        started.append(process)
        return process

    yield of_node
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def await_connecting(process: subprocess.Popen[str]) -> None:
    """Wait until the process has tried to reach the first node, or listens there."""
    (port,) = (int(word[14:]) for word in map(str, process.args) if word.startswith("--master-port="))  # type: ignore[arg-type]
    patience = Patience(process.pid)
    while not patience.is_over:
        assert process.poll() is None, process.communicate()[0]
        connections = psutil.Process(process.pid).net_connections("tcp")
        if any(port in (each.laddr[1:] + each.raddr[1:]) for each in connections):
            return
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    pytest.fail("it never came to the rendezvous")


def ranks_of(said: str) -> list[list[str]]:
    return sorted(line.split()[1:4] for line in said.splitlines() if line.count(" ") == 4 and line[0].isdigit())


def test_a_stranger_on_the_same_port_gets_no_rank(start: Start) -> None:
    first = start(0, "run")
    await_connecting(first)
    stranger = start(1, "another run")
    await_connecting(stranger)
    others = [start(1, "run"), start(2, "run")]
    for process in (first, *others):
        said = outputs_of(process)[0]
        assert process.returncode == 0, said
        assert len(ranks_of(said)) == 2
    stranger.terminate()
    assert ranks_of(outputs_of(stranger)[0]) == []
