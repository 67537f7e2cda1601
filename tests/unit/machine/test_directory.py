"""The files of the nodes of a scale."""

from __future__ import annotations

from pathlib import Path

from ddp_ladder.machine.directory import MachineDirectory, read_machines, remove_others
from make_machine import make_affinity, make_machine


def test_a_later_job_replaces_all_files_of_a_node(tmp_path: Path) -> None:
    directory = MachineDirectory.of(tmp_path, "2x4", "node1")
    first = make_machine("2x4", ranks=(), affinity_of=None)
    directory.replace(first, {"lscpu.txt": "a", "topo.txt": "b"})
    complete = first.replace(affinity_of="default/weak/2x4/r1", ranks=(make_affinity(0, "0-15"),))
    directory.add_affinity(complete, "rank 0\n")
    assert directory.read() == complete
    later = make_machine("2x4", job_id="8", ranks=(), affinity_of=None)
    directory.replace(later, {"lscpu.txt": "c"})
    assert sorted(path.name for path in directory.path.iterdir()) == ["lscpu.txt", "machine.json"]
    assert directory.read() == later


def test_scales_come_by_size_and_a_damaged_file_is_left_out(tmp_path: Path) -> None:
    for scale, node in (("10x4", "b"), ("2x4", "b"), ("2x4", "a"), ("1x1", "a")):
        MachineDirectory.of(tmp_path, scale, node).replace(make_machine(scale, node), {})
    MachineDirectory.of(tmp_path, "10x4", "a").path.mkdir()
    MachineDirectory.of(tmp_path, "10x4", "a").machine.write_text("{")
    found = read_machines(tmp_path)
    assert {scale: [machine.node for machine in nodes] for scale, nodes in found.items()} == {
        "1x1": ["a"], "2x4": ["a", "b"], "10x4": ["b"],
    }  # fmt: skip
    assert list(found) == ["1x1", "2x4", "10x4"]
    assert read_machines(tmp_path / "nothing") == {}


def test_nodes_that_a_later_job_does_not_have_are_removed(tmp_path: Path) -> None:
    for scale, node in (("2x4", "a"), ("2x4", "b"), ("1x4", "a")):
        MachineDirectory.of(tmp_path, scale, node).replace(make_machine(scale, node), {})
    remove_others(tmp_path, "2x4", ["b", "c"])
    assert sorted(path.parent.name for path in tmp_path.glob("machine/2x4/*/machine.json")) == ["b"]
    assert (tmp_path / "machine/1x4/a/machine.json").exists()
