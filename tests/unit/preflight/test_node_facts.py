"""The facts of this machine, read for real."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ddp_ladder.common.paths import SCRIPTS
from ddp_ladder.node.launch import Places
from ddp_ladder.node.network import node_name
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.preflight.leftovers import leftovers
from ddp_ladder.preflight.node_facts import (
    Marker,
    collect,
    directory_facts,
    interface_facts,
    is_seen,
    port_facts,
    resolved,
)
from ddp_ladder.preflight.node_models import NodeFacts
from make_preflight import has_ended
from make_records import make_spec

HOST = "127.0.0.1"


def facts(spec: RunSpec, directory: Path, timeout_s: float = 60, **more: Any) -> NodeFacts:
    return collect(spec, Places(Path.cwd(), directory), 0, (HOST, free_port()), timeout_s, **more)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def python(directory: Path, script: str) -> str:
    """Write a training Python, which ends with what ``script`` prints."""
    path = directory / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_this_machine(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    marker = Marker(tmp_path / "marker", "token")
    marker.path.write_text("token")
    found = facts(make_spec("1x2"), tmp_path, marker=marker)
    assert (found.node, found.host, found.node_rank) == (node_name(), socket.gethostname(), 0)
    assert found.unanswered == ()
    assert found.cpus == tuple(sorted(os.sched_getaffinity(0)))
    assert found.marker_seen is True
    assert found.gpus is None  # a CPU site
    assert found.software is not None
    assert (found.software.torch, found.software.error) == (torch.__version__, None)
    assert (found.software.executable, found.software.gpus) == (sys.executable, 0)
    assert found.port is not None
    assert found.port.free
    assert found.interface is not None
    assert (found.interface.name, found.interface.address, found.interface.up) == ("lo", HOST, True)
    assert found.interface.mtu == psutil.net_if_stats()["lo"].mtu
    assert found.run_directory is not None
    assert found.run_directory.error is None
    assert found.run_directory.free_bytes
    assert list(tmp_path.iterdir()) == [marker.path]


def test_a_question_that_hangs_costs_only_its_own_answer(tmp_path: Path) -> None:
    spec = make_spec("1x2", python=python(tmp_path, f"sleep 600 & echo $! > {tmp_path}/child; wait"))
    found = facts(spec, tmp_path, timeout_s=2)
    assert found.software is None
    (unanswered,) = found.unanswered
    assert unanswered.startswith("software: ")
    assert found.cpus
    assert has_ended(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"python": "/no/python"}, "software.python: /no/python cannot be started: No such file or directory"),
        ({"setup": "echo oops; false"}, "software.setup: the snippet failed with exit code 1\noops"),
        ({"setup": "export PYTHONHOME=/nowhere", "python": sys.executable}, "software.python: "),
    ],
    ids=["no Python", "setup", "environment"],
)
def test_software_that_does_not_start_names_its_key(tmp_path: Path, changes: dict[str, str], error: str) -> None:
    found = facts(make_spec("1x2", **changes), tmp_path)
    assert found.software is not None
    assert str(found.software.error).startswith(error)


def test_a_torch_that_cannot_be_imported(tmp_path: Path) -> None:
    report = '{"python": [3, 11, 7], "executable": "/x/python", "error": "ImportError: libcudart.so.12, TOKEN=abc123"}'
    found = facts(make_spec("1x2", python=python(tmp_path, f"echo '{report}'; echo of a site")), tmp_path)
    assert found.software is not None
    assert found.software.error == (
        "software.python: /x/python cannot import torch: ImportError: libcudart.so.12, TOKEN=***"
    )


def test_a_port_that_is_held_is_named_with_its_holder() -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = other.getsockname()[1]
        taken = port_facts(HOST, port)
    assert not taken.free
    assert f"process {os.getpid()} of" in str(taken.holder)
    assert port_facts(HOST, port).free


def test_an_interface_that_is_missing_and_one_that_is_down() -> None:
    missing = interface_facts("ib9", HOST)
    assert (missing.name, missing.exists, missing.address) == ("ib9", False, None)
    assert "lo" in missing.others
    down = [name for name, stats in psutil.net_if_stats().items() if not stats.isup]
    for name in down[:1]:
        assert interface_facts(name, HOST).up is False
    assert interface_facts({"another": "ib0"}, HOST).name == "lo"


def test_directories(tmp_path: Path) -> None:
    assert directory_facts(tmp_path / "not" / "yet").error is None
    assert directory_facts(Path("/proc")).error


def test_a_file_of_the_head_that_another_node_does_not_see(tmp_path: Path) -> None:
    assert not is_seen(Marker(tmp_path / "marker", "token"), within_s=0.2)
    (tmp_path / "marker").write_text("another job's")
    assert not is_seen(Marker(tmp_path / "marker", "token"), within_s=0.2)


def test_names() -> None:
    assert resolved("localhost") == (HOST,)
    assert resolved("no-such-host.invalid") == ()


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[int]:
    """A rank of an earlier run whose launcher is gone."""
    program = tmp_path / "workflow/scripts/instrument.py"
    program.parent.mkdir(parents=True)
    program.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    start = f"DDP_LADDER_RUN={tmp_path}/run.json setsid {sys.executable} {program} train.py --api-key k1 & echo $!"
    shell = subprocess.Popen(["sh", "-c", start], stdout=subprocess.PIPE, text=True)
    assert shell.stdout is not None
    with shell.stdout as printed:
        pid = int(printed.readline())
        assert printed.readline() == "up\n"
    shell.wait()
    yield pid
    os.kill(pid, signal.SIGKILL)


def test_a_rank_of_an_earlier_run_is_a_leftover_and_one_with_a_parent_is_none(orphan: int, tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", f"{SCRIPTS}/instrument.py"])
    try:
        found = {each.pid: each for each in leftovers()}
    finally:
        child.kill()
        child.wait()
    assert orphan in found
    assert found[orphan].run == f"{tmp_path}/run.json"
    assert found[orphan].command.endswith("instrument.py train.py --api-key ***")
    assert child.pid not in found
