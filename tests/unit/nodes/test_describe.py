"""What a node is made of: this machine, and captured texts of lscpu and nvidia-smi (output/README.md)."""

from __future__ import annotations

import os
import re
from pathlib import Path

import psutil
import pytest
from ddp_ladder.nodes.sampler import NodeDescription, describe, machine_directory, read_machines
from ddp_ladder.platform.accelerators import ACCELERATORS, Accelerator
from make_files import write_programs
from make_machine import make_machine

OUTPUT = Path(__file__).parent / "output"
IN_OTHER_WORDS = {"PATH": os.environ["PATH"], "LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de"}


def described(
    results: Path, accelerator: Accelerator = ACCELERATORS["cpu"], environment: dict[str, str] = IN_OTHER_WORDS
) -> NodeDescription:
    return describe(results, "1x1", "node1", "lo", accelerator, environment)


def files(results: Path) -> list[str]:
    return sorted(path.name for path in (machine_directory(results, "1x1") / "node1").iterdir())


def alone(directory: Path, **scripts: str) -> dict[str, str]:
    """Return an environment with these commands alone."""
    return {"PATH": str(write_programs(directory, **scripts))}


def test_this_machine(tmp_path: Path) -> None:
    machine = described(tmp_path)
    assert files(tmp_path) == ["lscpu.txt", "machine.json"]
    assert read_machines(tmp_path) == {"1x1": (machine,)}
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    words = rf"\d+ x .+; {psutil.cpu_count()} CPUs?; {memory}; lo; .+, kernel {re.escape(os.uname().release)}"
    assert re.fullmatch(words, machine.in_words)


@pytest.mark.parametrize(
    ("query", "lscpu", "driver", "gpu", "processors"),
    [
        ("h100_545", "h100_545", "545.23.08", "NVIDIA H100 80GB HBM3", "2 x Intel(R) Xeon(R) Platinum 8468"),
        ("gh200_550", "epyc_2.38", "550.127.05", "NVIDIA GH200 480GB", "1 x AMD EPYC 74F3 24-Core Processor"),
        ("h800_525", "epyc_2.38", "525.105.17", "NVIDIA H800", "1 x AMD EPYC 74F3 24-Core Processor"),
    ],
)
def test_fake_commands_that_print_what_was_captured(
    query: str, lscpu: str, driver: str, gpu: str, processors: str, tmp_path: Path
) -> None:
    topology = OUTPUT / "h100_545_topo.txt"
    smi = f'case "$*" in -q) exec /bin/cat {OUTPUT}/{query}_q.txt;; *) exec /bin/cat {topology};; esac'
    environment = alone(tmp_path, nvidia_smi=smi, lscpu=f"exec /bin/cat {OUTPUT}/{lscpu}_lscpu.txt")
    machine = described(tmp_path, accelerator=ACCELERATORS["cuda"], environment=environment)
    assert machine.in_words.startswith(f"1 x {gpu} (driver {driver}); {processors}; ")
    assert files(tmp_path) == ["lscpu.txt", "machine.json", "nvidia-smi-q.txt", "topo.txt"]
    assert (machine_directory(tmp_path, "1x1") / "node1/topo.txt").read_text() == topology.read_text()


def write(results: Path, *machines: NodeDescription) -> None:
    for machine in machines:
        directory = machine_directory(results, machine.scale) / machine.node
        directory.mkdir(parents=True)
        (directory / "machine.json").write_text(machine.model_dump_json())


def test_scales_come_by_size_and_a_damaged_file_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, *(make_machine(*place) for place in (("10x4", "b"), ("2x4", "b"), ("2x4", "a"), ("1x1", "a"))))
    (machine_directory(tmp_path, "10x4") / "b/machine.json").write_text("{")
    found = read_machines(tmp_path)
    assert {scale: [machine.node for machine in nodes] for scale, nodes in found.items()} == {
        "1x1": ["a"], "2x4": ["a", "b"],
    }  # fmt: skip
    assert list(found) == ["1x1", "2x4"]
    assert read_machines(tmp_path / "nothing") == {}
