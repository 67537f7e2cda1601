"""What the facts of nodes mean: each bad fact is one finding that names its node and what to change."""

from __future__ import annotations

from typing import Any

import pytest
from ddp_ladder.common.findings import Finding
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.preflight.nodes import InterfaceFacts, NodeFacts, node_findings
from ddp_ladder.settings.keys import Slurm
from ddp_ladder.settings.terms import Scale
from make_preflight import GPU, directory, gpus_facts, node_facts
from make_records import make_spec

NODES = 4
JOB = ScaleJob("stage3", Scale(NODES, 2), 20, (), cpus=4, slurm=Slurm())
TWO = {"index": 1, "uuid": "GPU-1"}
MIB = 2**20


def judge(facts: dict[str, NodeFacts | None] | None = None, device: str = "cuda") -> tuple[Finding, ...]:
    healthy = {f"node{rank + 1}": node_facts(rank) for rank in range(NODES)}
    return node_findings(make_spec(f"{NODES}x2", device=device), JOB, {**healthy, **(facts or {})})


BAD: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "fewer GPUs visible": (
        {"gpus": gpus_facts(GPU, visible_devices="0")},
        "error", "1 of 2 GPUs visible (CUDA_VISIBLE_DEVICES=0)", "--gpus-per-task",
    ),
    "nvidia-smi fails": (
        {"gpus": gpus_facts(error="Unable to determine the device handle for GPU 0000:C1:00.0")},
        "error", "nvidia-smi: Unable to determine", "slurm.exclude",
    ),
    "another driver": (
        {"gpus": gpus_facts(GPU.replace(driver="565.57.01"), GPU.replace(**TWO, driver="565.57.01"))},
        "warning", "driver 565", "exclude",
    ),
    "another model": (
        {"gpus": gpus_facts(GPU.replace(name="NVIDIA H100"), GPU.replace(**TWO, name="NVIDIA H100"))},
        "warning", "it has NVIDIA H100, the others NVIDIA A100-SXM4-64GB", "slurm.constraint",
    ),
    "memory in use": (
        {"gpus": gpus_facts(GPU.replace(memory_used_mib=30000.0), GPU.replace(**TWO))},
        "warning", "GPU 0: 30000 MiB are in use", "node.gres",
    ),
    "no interface": (
        {"interface": InterfaceFacts(name="ib9", error="no interface ib9 with an IPv4 address on node3; there are lo")},
        "error", "no interface ib9 with an IPv4 address on node3; there are lo", "network.interface in cluster.yaml",
    ),
    "head not reached": (
        {"link_error": "No route to host"},
        "error", "it does not reach the head at 10.0.0.1:23456: No route to host", "network.interface",
    ),
    "few CPUs": ({"cpus": 1}, "error", "the job step has 1 CPU", "node.cpus"),
    "few CPUs without Slurm": ({"cpus": 1, "in_slurm": False}, "warning", "1 CPU", "lower node.cpus"),
    "small /dev/shm": (
        {"shared_memory": directory("/dev/shm").replace(free_bytes=8 * MIB)}, "warning", "/dev/shm has 8", "shm-size",
    ),
    "/dev/shm not writable": (
        {"shared_memory": directory("/dev/shm").replace(error="Permission denied")}, "error", "/dev/shm can", "mount",
    ),
    "full disk": (
        {"run_directory": directory("/scratch").replace(error="No space left on device")},
        "error", "/scratch cannot be written: No space left on device", "df -h /scratch",
    ),
    "little room": (
        {"run_directory": directory("/scratch").replace(free_bytes=100 * MIB)}, "warning", "has 100 MB free", "df",
    ),
    "not shared": ({"marker_seen": False}, "error", "the job's file in /scratch/results", "results in config"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_fact_is_one_finding(case: str) -> None:
    changes, severity, what, next_step = BAD[case]
    (found,) = judge({"node3": node_facts(2, **changes)})
    assert (found.severity, found.place) == (severity, "node3")
    assert what in found.measured
    assert next_step in found.next
    assert found.wanted


def test_what_is_wrong_on_all_nodes_is_one_finding() -> None:
    (found,) = judge({f"node{rank + 1}": node_facts(rank, cpus=1) for rank in range(NODES)})
    assert found.place == "node[1-4]"


def test_a_cause_at_the_head_is_named_once() -> None:
    others = {f"node{rank + 1}": node_facts(rank, link_error="no answer in time") for rank in range(1, NODES)}
    held = node_facts(0, link_error="Address already in use")
    (found,) = judge({**others, "node1": held})
    assert (found.place, found.measured) == ("node1", "rendezvous port 23456: Address already in use")
    assert "sport = 23456" in found.next
    down = InterfaceFacts(name="ib0", error="interface ib0 (10.0.0.1) is down")
    (found,) = judge({**others, "node1": node_facts(0, interface=down)})
    assert (found.place, found.measured) == ("node1", "interface ib0 (10.0.0.1) is down")
    (found,) = judge({**others, "node1": None})
    assert (found.place, found.measured) == ("node1", "it left no answer")


def test_causes_come_before_warnings() -> None:
    found = judge(
        {
            "node1": node_facts(0, gpus=gpus_facts(GPU.replace(memory_used_mib=9000.0), GPU)),
            "node3": node_facts(2, cpus=1),
        }
    )
    assert [each.severity for each in found] == ["error", "warning"]
