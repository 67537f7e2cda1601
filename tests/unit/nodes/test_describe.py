"""What a node is made of: this machine, and an answer of lscpu."""

from __future__ import annotations

import os
import re
from pathlib import Path

import psutil
import pytest
from ddp_ladder.nodes.sampler import NodeDescription, describe, machine_directory, read_machines
from make_files import put_on_path
from make_machine import make_machine
from make_preflight import GPU

LSCPU = """Architecture:        x86_64
CPU(s):              96
Socket(s):           2
Model name:          Intel(R) Xeon(R) Platinum 8468
"""


def test_this_machine(tmp_path: Path) -> None:
    machine = describe(tmp_path, "1x1", "node1", "lo", ())
    assert read_machines(tmp_path) == {"1x1": (machine,)}
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    words = rf"\d+ x .+; {psutil.cpu_count()} CPUs?; {memory}; lo; .+, kernel {re.escape(os.uname().release)}"
    assert re.fullmatch(words, machine.in_words)


def test_gpus_and_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lscpu prints in English, whatever the language of the user."""
    put_on_path(monkeypatch, tmp_path, lscpu=f'[ "$LC_ALL" = C ] && cat <<"END"\n{LSCPU}END')
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    machine = describe(tmp_path, "1x1", "node1", "lo", (GPU, GPU))
    processors = "2 x Intel(R) Xeon(R) Platinum 8468"
    assert machine.in_words.startswith(f"2 x {GPU.name} (driver {GPU.driver}); {processors}; ")


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
