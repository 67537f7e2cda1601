"""What a node is made of: this machine, and captured lscpu texts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil
import pytest
from ddp_ladder.machine import collect as collecting
from ddp_ladder.machine.collect import collect
from ddp_ladder.machine.cpuset import own_cpuset
from ddp_ladder.machine.lscpu import parse_lscpu
from ddp_ladder.node.numa import cpus_text, parse_cpus
from make_files import write_files
from make_preflight import has_ended

OUTPUT = Path(__file__).parent / "output"
LOCAL = {"PATH": os.environ["PATH"]}


@pytest.mark.parametrize(
    ("name", "model", "shape"),
    [
        ("h100_545", "Intel(R) Xeon(R) Platinum 8468", (2, 48, 1, 96)),
        ("epyc_2.38", "AMD EPYC 74F3 24-Core Processor", (1, 24, 2, 48)),
    ],
)
def test_captured_lscpu(name: str, model: str, shape: tuple[int, ...]) -> None:
    cpu = parse_lscpu((OUTPUT / f"{name}_lscpu.txt").read_text())
    assert (cpu.model, cpu.architecture) == (model, "x86_64")
    assert (cpu.sockets, cpu.cores_per_socket, cpu.threads_per_core, cpu.cpus) == shape


def test_this_machine() -> None:
    machine, texts = collect("7", "1x1", "node1", "lo", has_gpus=False, environment=LOCAL)
    assert list(texts) == ["lscpu.txt"]
    assert (machine.job_id, machine.scale, machine.node, machine.notes, machine.gpus) == ("7", "1x1", "node1", (), ())
    assert machine.kernel == os.uname().release
    assert machine.cpu is not None
    assert machine.cpu.cpus == psutil.cpu_count()
    assert machine.memory_bytes == psutil.virtual_memory().total
    assert (machine.interface.name, machine.interface.address) == ("lo", "127.0.0.1")


def test_cpuset_of_this_process_follows_its_affinity() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, [max(before)])
        cpuset = own_cpuset()
    finally:
        os.sched_setaffinity(0, before)
    assert cpuset.allowed_cpus == str(max(before))
    if cpuset.cpus:  # this machine shows control groups
        assert before <= set(parse_cpus(cpuset.cpus))


STATUS = "Name:\tpython\nCpus_allowed_list:\t0-7\nMems_allowed_list:\t0\n"


def test_made_control_groups_of_slurm_version_2(tmp_path: Path) -> None:
    """Of a task, whose own group has no cpuset controller."""
    step = "/system.slice/slurmstepd.scope/job_412/step_0"
    root = write_files(
        tmp_path,
        {
            "proc/self/cgroup": f"0::{step}/user/task_0\n",
            "proc/self/status": STATUS,
            f"sys/fs/cgroup{step}/cpuset.cpus.effective": "0-15\n",
            f"sys/fs/cgroup{step}/cpuset.mems.effective": "0-1\n",
        },
    )
    cpuset = own_cpuset(root / "proc", root / "sys")
    assert (cpuset.cgroup, cpuset.cpus, cpuset.memory_nodes) == (step, "0-15", "0-1")
    assert (cpuset.allowed_cpus, cpuset.allowed_memory_nodes) == ("0-7", "0")


def test_made_control_groups_of_slurm_version_1(tmp_path: Path) -> None:
    step = "/slurm/uid_1000/job_412/step_0"
    root = write_files(
        tmp_path,
        {
            "proc/self/cgroup": f"9:cpuset:{step}\n4:memory:{step}\n1:name=systemd:/system.slice\n0::/\n",
            f"sys/fs/cgroup/cpuset{step}/cpuset.cpus": "0-15\n",
            f"sys/fs/cgroup/cpuset{step}/cpuset.mems": "0-1\n",
        },
    )
    cpuset = own_cpuset(root / "proc", root / "sys")
    assert (cpuset.cgroup, cpuset.cpus, cpuset.memory_nodes, cpuset.allowed_cpus) == (step, "0-15", "0-1", None)


def command(directory: Path, name: str, script: str) -> dict[str, str]:
    """Return an environment with this command alone."""
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"PATH": f"{directory}", "CUDA_VISIBLE_DEVICES": "0"}


def test_missing_commands_are_notes() -> None:
    machine, texts = collect("7", "1x1", "node1", "lo", has_gpus=True, environment={"PATH": "/nowhere"})
    assert texts == {}
    assert machine.notes == ("lscpu: there is no lscpu in PATH", "nvidia-smi -q: there is no nvidia-smi in PATH")
    assert (machine.cpu, machine.gpus) == (None, ())


def test_fake_nvidia_smi_that_prints_what_was_captured(tmp_path: Path) -> None:
    script = (
        f'case "$*" in -q) exec /bin/cat {OUTPUT}/h100_545_q.txt;; *) exec /bin/cat {OUTPUT}/h100_545_topo.txt;; esac'
    )
    machine, texts = collect("7", "1x1", "n", "lo", has_gpus=True, environment=command(tmp_path, "nvidia-smi", script))
    assert sorted(texts) == ["nvidia-smi-q.txt", "topo.txt"]
    assert texts["topo.txt"] == (OUTPUT / "h100_545_topo.txt").read_text()
    assert (machine.driver, machine.gpus[0].links["mlx5_0"]) == ("545.23.08", "PIX")


def test_fake_nvidia_smi_that_fails_or_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = command(tmp_path, "nvidia-smi", "echo No devices were found; exit 6")
    machine, _ = collect("7", "1x1", "n", "lo", has_gpus=True, environment=environment)
    assert machine.notes[-1] == "nvidia-smi -q ended with 6: No devices were found"
    monkeypatch.setattr(collecting, "COMMAND_S", 0.5)
    environment = command(tmp_path, "nvidia-smi", f"echo $$ > {tmp_path}/pid; exec /bin/sleep 600")
    machine, texts = collect("7", "1x1", "n", "lo", has_gpus=True, environment=environment)
    assert machine.notes[-1] == "nvidia-smi -q: no answer in 0.5 s"
    assert texts == {}
    assert has_ended(int((tmp_path / "pid").read_text()))


def test_lscpu_in_another_language() -> None:
    plain = subprocess.run(["lscpu"], capture_output=True, text=True, check=True, env={**LOCAL, "LC_ALL": "C"}).stdout
    machine, texts = collect("7", "1x1", "n", "lo", False, {**LOCAL, "LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de"})
    assert parse_lscpu(texts["lscpu.txt"]) == parse_lscpu(plain) == machine.cpu


def test_numa_nodes_of_this_machine_have_its_cpus() -> None:
    machine, _ = collect("7", "1x1", "n", "lo", has_gpus=False, environment=LOCAL)
    assert cpus_text(cpu for node in machine.numa_nodes for cpu in parse_cpus(node.cpus)) == cpus_text(
        range(psutil.cpu_count() or 1)
    )
