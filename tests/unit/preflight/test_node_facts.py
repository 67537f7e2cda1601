"""The facts of this machine, read for real, and what nvidia-smi tells."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import psutil
import pytest
from ddp_ladder.node.launch import Places
from ddp_ladder.node.network import node_name
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.preflight.link import HeadServer, reach_head
from ddp_ladder.preflight.node_facts import (
    NodeFacts,
    collect,
    directory_facts,
    gpus_facts,
    interface_facts,
    is_seen,
    parse_gpus,
    resolved,
)
from make_preflight import has_ended
from make_records import make_spec

HOST = "127.0.0.1"
OUTPUT = Path(__file__).parent / "nvidia_smi_output"
A5000 = (OUTPUT / "a5000_v13.xml").read_text()


def facts(spec: RunSpec, directory: Path, timeout_s: float = 60, port: int = 0) -> NodeFacts:
    (directory / "marker").touch()
    return collect(
        spec, Places(Path.cwd(), directory), 0, (HOST, port or free_port()), HOST, timeout_s, directory / "marker"
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def test_this_machine(tmp_path: Path) -> None:
    found = facts(make_spec("1x2"), tmp_path)
    assert (found.node, found.host, found.node_rank) == (node_name(), socket.gethostname(), 0)
    assert found.cpus == len(os.sched_getaffinity(0))
    assert found.marker_seen is True
    assert found.gpus is None  # a CPU site
    assert found.link is not None
    assert found.link.error is None
    assert (found.interface.name, found.interface.address, found.interface.up) == ("lo", HOST, True)
    assert found.interface.mtu == psutil.net_if_stats()["lo"].mtu
    assert found.run_directory.error is None
    assert found.run_directory.free_bytes


def test_the_port_is_held_by_another_program(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        found = facts(make_spec("1x2"), tmp_path, port=port)
        threading.Thread(target=lambda: other.accept()[0].close(), daemon=True).start()
        with pytest.raises(OSError, match="another program listens there"):
            reach_head(HOST, (HOST, port), "token", time.monotonic() + 5)
    assert found.link is not None
    assert found.link.error == "Address already in use"


def test_nodes_reach_the_head() -> None:
    port, took_s = free_port(), []
    until_s = time.monotonic() + 20

    def visit() -> None:
        took_s.append(reach_head(HOST, (HOST, port), "token", until_s))

    visitors = [threading.Thread(target=visit) for _ in range(2)]
    visitors[0].start()  # it waits for the head
    time.sleep(0.2)
    server = HeadServer(HOST, port, "token", others=2)
    with pytest.raises(OSError, match="another program"):
        reach_head(HOST, (HOST, port), "token of another job", until_s)
    visitors[1].start()
    server.finish(until_s)
    for visitor in visitors:
        visitor.join(20)
    assert len(took_s) == 2
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


def test_a_head_that_does_not_come() -> None:
    with pytest.raises(OSError, match="Connection refused"):
        reach_head(HOST, (HOST, free_port()), "token", time.monotonic() + 0.3)


def test_an_interface_that_is_missing_and_one_that_is_down() -> None:
    missing = interface_facts("ib9", HOST)
    assert (missing.name, missing.address) == ("ib9", None)
    assert "no interface ib9 with an IPv4 address" in str(missing.error)
    down = [name for name, stats in psutil.net_if_stats().items() if not stats.isup]
    for name in down[:1]:
        assert not interface_facts(name, HOST).up
    assert interface_facts({"another": "ib0"}, HOST).name == "lo"


def test_directories_and_names(tmp_path: Path) -> None:
    assert directory_facts(tmp_path / "not" / "yet").error is None
    assert directory_facts(Path("/proc")).error
    assert not is_seen(tmp_path / "marker", within_s=0.2)
    assert resolved("localhost") == (HOST,)
    assert resolved("no-such-host.invalid") == ()


def test_captured_a5000_of_which_others_use_the_memory() -> None:
    driver, gpus = parse_gpus(A5000, None)
    assert driver == "590.44.01"
    assert [(gpu.index, gpu.name, gpu.uuid[-2:]) for gpu in gpus] == [
        (0, "NVIDIA RTX A5000", "ab"),
        (1, "NVIDIA RTX A5000", "cd"),
    ]
    assert gpus[0].processes == ("100477 llama-server",)
    assert (gpus[0].memory_used_mib, gpus[0].is_broken, gpus[0].troubles) == (22437, False, ())  # ECC is off


@pytest.mark.parametrize(
    ("name", "model", "used_mib"), [("t4_v11", "Tesla T4", 1032), ("a100_mig_v12", "NVIDIA A100-SXM4-80GB", 50)]
)
def test_captured_older_formats(name: str, model: str, used_mib: int) -> None:
    _, (gpu,) = parse_gpus((OUTPUT / f"{name}.xml").read_text(), "0")
    assert (gpu.name, gpu.memory_used_mib, gpu.troubles) == (model, used_mib, ())  # of the GPU, not its MIG device


@pytest.mark.parametrize(
    ("healthy", "broken", "trouble"),
    [
        ("<remapped_row_pending>No", "<remapped_row_pending>Yes", "row remapping is pending"),
        ("hw_thermal_slowdown>Not Active", "hw_thermal_slowdown>Active", "slowed down while it is idle: hw_thermal"),
        ("<dram_uncorrectable>N/A", "<dram_uncorrectable>3", "3 uncorrectable ECC errors"),
        ("<gpu_recovery_action>None", "<gpu_recovery_action>Reset", "recovery action: Reset"),
    ],
)
def test_captured_a5000_changed_to_one_in_trouble(healthy: str, broken: str, trouble: str) -> None:
    assert healthy in A5000
    _, gpus = parse_gpus(A5000.replace(healthy, broken), None)
    (found,) = gpus[1].troubles
    assert trouble in found


def test_captured_a5000_changed_to_a_broken_one() -> None:
    _, gpus = parse_gpus(A5000.replace("<remapped_row_failure>No", "<remapped_row_failure>Yes"), "1")
    assert [(gpu.index, gpu.is_broken) for gpu in gpus] == [(1, True)]


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (f'[ "$*" = "-q -x" ] && exec cat {OUTPUT}/a5000_v13.xml', None),
        ("echo NVIDIA-SMI has failed; exit 9", "NVIDIA-SMI has failed"),
        ("echo hello", "no XML"),
        ("sleep 600 & echo $! > child; wait", "no answer within 2 s"),
    ],
)
def test_fake_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, error: str | None) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    found = gpus_facts({"PATH": f"{tmp_path}:{os.defpath}", "CUDA_VISIBLE_DEVICES": "1"}, 2)
    assert [gpu.index for gpu in found.gpus] == ([] if error else [1])
    assert found.error is error is None or (error or "") in str(found.error)
    if (tmp_path / "child").exists():
        assert has_ended(int((tmp_path / "child").read_text()))


def test_no_nvidia_smi() -> None:
    found = gpus_facts({"PATH": "/nowhere"}, 20)
    assert (found.gpus, found.error, found.driver) == ((), None, None)
