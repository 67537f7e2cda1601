"""What the facts of nodes mean: each bad fact is one finding that names its node and what to change."""

from __future__ import annotations

from typing import Any

import pytest
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.preflight.finding import PreflightFinding
from ddp_ladder.preflight.node_findings import findings
from ddp_ladder.preflight.node_models import Leftover, MeshFacts, NameFacts, NodeFacts, PortFacts
from ddp_ladder.settings.cluster_keys import Slurm
from ddp_ladder.settings.terms import Scale
from make_preflight import GPU, INTERFACE, SOFTWARE, directory, gpus_facts, mesh_facts, node_facts
from make_records import make_spec

NODES = 4
JOB = ScaleJob("stage3", Scale(NODES, 2), 20, (), cpus=4, slurm=Slurm())
TWO = {"index": 1, "uuid": "GPU-1"}
HIDDEN = GPU.replace(**TWO, visible=False)
MIB = 2**20


def judge(
    facts: dict[str, NodeFacts | None] | None = None,
    mesh: dict[str, MeshFacts | None] | None = None,
    device: str = "cuda",
) -> tuple[PreflightFinding, ...]:
    healthy = {f"node{rank + 1}": node_facts(rank) for rank in range(NODES)}
    seen = {f"node{rank + 1}": mesh_facts(rank, NODES) for rank in range(NODES)}
    return findings(make_spec(f"{NODES}x2", device=device), JOB, {**healthy, **(facts or {})}, {**seen, **(mesh or {})})


def test_healthy_nodes_have_no_finding() -> None:
    assert judge() == ()
    assert judge(device="cpu") == ()


NO_TORCH = "software.python: /x/python cannot import torch"
BAD: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "fewer GPUs visible": (
        {"gpus": gpus_facts(GPU, HIDDEN, visible_devices="0")},
        "fail", "1 of 2 GPUs visible (CUDA_VISIBLE_DEVICES=0)", "--gpus-per-task",
    ),
    "no nvidia-smi, torch counts": (
        {"gpus": gpus_facts(driver=None), "software": SOFTWARE.replace(gpus=1)},
        "fail", "1 of 2 GPUs visible", "node.gres",
    ),
    "torch sees fewer": ({"software": SOFTWARE.replace(gpus=0)}, "fail", "torch counts 0 GPUs, nvidia-smi 2", "setup"),
    "nvidia-smi fails": (
        {"gpus": gpus_facts(error="Unable to determine the device handle for GPU 0000:C1:00.0")},
        "fail", "nvidia-smi: Unable to determine", "slurm.exclude",
    ),
    "nvidia-smi hangs": (
        {"gpus": None, "unanswered": ("gpus: no answer in time",)}, "fail", "no answer within 60 s", "slurm.exclude",
    ),
    "another driver": (
        {"gpus": gpus_facts(GPU, GPU.replace(**TWO), driver="565.57.01")}, "warn", "NVIDIA driver 565.57.01", "exclude",
    ),
    "another model": (
        {"gpus": gpus_facts(GPU.replace(name="NVIDIA H100"), GPU.replace(**TWO, name="NVIDIA H100"))},
        "warn", "it has NVIDIA H100, the others NVIDIA A100-SXM4-64GB", "slurm.constraint",
    ),
    "memory in use": (
        {"gpus": gpus_facts(GPU.replace(memory_used_mib=30000, processes=("4711 python",)), GPU.replace(**TWO))},
        "warn", "GPU 0: 30000 MiB are in use by 4711 python", "node.gres",
    ),
    "remapping failed": (
        {"gpus": gpus_facts(GPU, GPU.replace(**TWO, remapping_failed=True))},
        "fail", "GPU 1: row remapping has failed (GPU-1)", "slurm.exclude",
    ),
    "remapping pending": (
        {"gpus": gpus_facts(GPU, GPU.replace(**TWO, remapping_pending=True))}, "warn", "remapping is pending", "reset",
    ),
    "pages pending": (
        {"gpus": gpus_facts(GPU, GPU.replace(**TWO, retired_pages_pending=True))}, "warn", "page retirement", "reset",
    ),
    "ECC": (
        {"gpus": gpus_facts(GPU, GPU.replace(**TWO, uncorrectable_errors=2))},
        "warn", "GPU 1: 2 uncorrectable ECC errors", "slurm.exclude",
    ),
    "recovery": (
        {"gpus": gpus_facts(GPU, GPU.replace(**TWO, recovery_action="Reset"))},
        "warn", "GPU 1: the driver asks for a recovery action: Reset", "slurm.exclude",
    ),
    "slowed": (
        {"gpus": gpus_facts(GPU, GPU.replace(**TWO, slowed_by=("hw_power_brake_slowdown",)))},
        "warn", "GPU 1 is slowed down: hw_power_brake_slowdown", "slurm.exclude",
    ),
    "no interface": (
        {"interface": INTERFACE.replace(name="ib9", exists=False, address=None, up=None, others=("eth0", "lo"))},
        "fail", "there is no interface ib9", "network.interface in cluster.yaml, which may name one for each node; "
        "the node has eth0, lo",
    ),
    "no route": (
        {"interface": INTERFACE.replace(name=None, exists=False, address=None, up=None, error="no route to 10.0.0.1")},
        "fail", "no route to 10.0.0.1", "network.interface",
    ),
    "interface without address": (
        {"interface": INTERFACE.replace(address=None)}, "fail", "ib0 has no IPv4 address", "network.interface",
    ),
    "interface down": ({"interface": INTERFACE.replace(up=False)}, "fail", "ib0 (10.0.0.1) is down", "network"),
    "loopback": (
        {"interface": INTERFACE.replace(name="lo", address="127.0.0.1")}, "fail", "lo is loopback", "network.interface",
    ),
    "MTU": ({"interface": INTERFACE.replace(mtu=9000)}, "warn", "MTU of ib0 is 9000, on the others 2044", "interface"),
    "few CPUs": ({"cpus": (0,)}, "fail", "the job step has 1 CPU", "node.cpus"),
    "few CPUs without Slurm": ({"cpus": (0,), "in_slurm": False}, "warn", "1 CPU", "lower node.cpus"),
    "small /dev/shm": (
        {"shared_memory": directory("/dev/shm").replace(free_bytes=8 * MIB)}, "fail", "/dev/shm has 8 MB", "shm-size",
    ),
    "/dev/shm not writable": (
        {"shared_memory": directory("/dev/shm").replace(error="Permission denied")}, "fail", "/dev/shm cannot", "mount",
    ),
    "full disk": (
        {"run_directory": directory("/scratch").replace(error="No space left on device", free_bytes=0)},
        "fail", "/scratch cannot be written: No space left on device", "df -h /scratch",
    ),
    "little room": (
        {"run_directory": directory("/scratch").replace(free_bytes=100 * MIB)}, "warn", "has 100 MB free", "df",
    ),
    "few inodes": (
        {"run_directory": directory("/scratch").replace(free_inodes=12)}, "warn", "has 12 inodes", "df -i /scratch",
    ),
    "directory hangs": (
        {"run_directory": None, "unanswered": ("run_directory: no answer in time",)},
        "fail", "could not examine run_directory", "file system",
    ),
    "not shared": ({"marker_seen": False}, "fail", "the job's file in /scratch/results", "results in config"),
    "port held": (
        {"port": PortFacts(port=23456, free=False, holder="nc (process 7 of bob)", error="Address already in use")},
        "fail", "rendezvous port 23456 is held by nc (process 7 of bob)", "sport = 23456",
    ),
    "no torch": (
        {"software": SOFTWARE.replace(torch=None, error="software.python: /x/python cannot import torch: No module")},
        "fail", "software.python: /x/python cannot import torch", "for a program without torch, preflight: ",
    ),
    "torch not installed": (
        {"software": SOFTWARE.replace(torch=None, error=f"{NO_TORCH}: ModuleNotFoundError: No module named 'torch'")},
        "fail", "No module named 'torch'", "correct software.python in cluster.yaml, and try it in a shell there: "
        "srun --nodelist=node3 --pty bash; for a program",
    ),
    "torch not installed, without Slurm": (
        {"software": SOFTWARE.replace(torch=None, error=f"{NO_TORCH}: ModuleNotFoundError: No module named 'torch'"),
         "in_slurm": False},
        "fail", "No module named 'torch'", "correct software.python in cluster.yaml, and try it in a shell; for a",
    ),
    "torch fails": (
        {"software": SOFTWARE.replace(torch=None, error=f"{NO_TORCH}: ValueError: Invalid log settings: x")},
        "fail", "ValueError: Invalid log", "the message names the cause: the installation of torch, or a variable of",
    ),
    "setup fails": (
        {"software": SOFTWARE.replace(torch=None, error="software.setup: the snippet failed with exit code 1\noops\n")},
        "fail", "software.setup: the snippet failed with exit code 1; oops", "correct software.setup in cluster.yaml",
    ),
    "torch slow": ({"software": None, "unanswered": ("software: no answer",)}, "warn", "within 60 s", "timeout_s"),
    "another torch": (
        {"software": SOFTWARE.replace(torch="2.7.1+cu128")},
        "fail", "torch 2.7.1+cu128, on the others 2.8.0+cu128", "software.python",
    ),
    "another NCCL": ({"software": SOFTWARE.replace(nccl="2.21.5")}, "fail", "NCCL 2.21.5, on the others", "soft"),
    "another Python": ({"software": SOFTWARE.replace(python="3.11.2")}, "warn", "Python 3.11.2, on the others", "soft"),
    "host name is loopback": (
        {"host_addresses": ("127.0.1.1",)}, "fail", "resolves to 127.0.1.1", "/etc/hosts",
    ),
    "host name unknown": ({"host_addresses": ()}, "warn", "does not resolve", "/etc/hosts"),
    "leftovers": (
        {"leftovers": (Leftover(pid=7, command="python instrument.py train.py", run="/r/run.json"),)},
        "warn", "1 leftover of an earlier run: 7 (/r/run.json)", "kill 7",
    ),
    "locked memory": ({"locked_memory_bytes": 65536}, "warn", "ulimit -l is 64 KB", "LimitMEMLOCK"),
    "open files": ({"open_files": 1024}, "warn", "(ulimit -Hn) is 1024", "fewer loader workers"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_fact_is_one_finding(case: str) -> None:
    changes, level, what, next_step = BAD[case]
    rank = 0 if "port" in changes else 2
    name = f"node{rank + 1}"
    (found,) = judge({name: node_facts(rank, **changes)})
    assert (found.level, found.node) == (level, name)
    assert what in found.what
    assert next_step in found.next
    assert found.wanted


def test_a_driver_that_is_too_old_for_torch() -> None:
    old = gpus_facts(GPU, GPU.replace(**TWO), driver="470.57.02")
    (found,) = judge({f"node{rank + 1}": node_facts(rank, gpus=old) for rank in range(NODES)})
    assert found.what == "driver 470.57.02 is too old for torch, which is built for CUDA 12.8"
    assert found.wanted == "driver 525.60.13 or newer"


def test_what_is_wrong_on_all_nodes_is_one_finding() -> None:
    no_torch = SOFTWARE.replace(torch=None, error=f"{NO_TORCH}: ModuleNotFoundError: No module named 'torch'")
    (found,) = judge({f"node{rank + 1}": node_facts(rank, software=no_torch) for rank in range(NODES)})
    assert found.node == "node1, node2, node3, node4"
    assert "srun --nodelist=node1 --pty bash" in found.next


def test_one_node_may_have_a_host_name_that_only_it_resolves() -> None:
    fact = node_facts(0, host_addresses=("127.0.1.1",), interface=INTERFACE.replace(name="lo", address="127.0.0.1"))
    assert findings(make_spec("1x2", device="cuda"), JOB, {"node1": fact}, {}) == ()


def test_nodes_that_are_simulated_on_one_machine_meet_over_loopback() -> None:
    facts = {
        f"vm (node {rank})": node_facts(
            rank, node="vm", host_addresses=("127.0.1.1",), interface=INTERFACE.replace(name="lo", address="127.0.0.1")
        )
        for rank in range(2)
    }
    seen = NameFacts(name="vm", addresses=("127.0.1.1",), error=None)
    mesh = {f"vm (node {rank})": mesh_facts(rank, 2, names=(seen,), links=()) for rank in range(2)}
    assert findings(make_spec("2x2"), JOB, facts, mesh) == ()


def test_causes_come_before_warnings() -> None:
    found = judge({"node1": node_facts(0, open_files=1024), "node3": node_facts(2, cpus=(0,))})
    assert [each.level for each in found] == ["fail", "warn"]
