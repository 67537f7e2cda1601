"""results/machine/<scale>/<node>: the files that describe a node, written once per job of the scale."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.common.files import read_json, write_atomically, write_json
from ddp_ladder.machine.model import Machine


@dataclass(frozen=True)
class MachineDirectory:
    """The files of one node. Texts are as the commands printed them."""

    path: Path

    @classmethod
    def of(cls, results: Path, scale: object, node: str) -> MachineDirectory:
        return cls(results / "machine" / str(scale) / node)

    @property
    def machine(self) -> Path:
        return self.path / "machine.json"

    @property
    def affinity(self) -> Path:
        return self.path / "affinity.txt"

    def read(self) -> Machine | None:
        """Return what is known of the node; None if nothing is, or the file is damaged."""
        try:
            return Machine.from_json(read_json(self.machine))
        except (OSError, ValueError):
            return None

    def replace(self, machine: Machine, texts: Mapping[str, str]) -> None:
        """Write machine.json, and these texts by file name, in place of an earlier job's. Raises NotWritten."""
        shutil.rmtree(self.path, ignore_errors=True)
        for name, text in texts.items():
            write_atomically(self.path / name, text)
        write_json(self.machine, machine.model_dump())

    def add_affinity(self, machine: Machine, text: str) -> None:
        """Write machine.json with its ranks, and affinity.txt. Raises NotWritten."""
        write_atomically(self.affinity, text)
        write_json(self.machine, machine.model_dump())


def remove_others(results: Path, scale: object, nodes: Iterable[str]) -> None:
    """Remove the nodes of an earlier job that this one, with these nodes, does not have."""
    kept = set(nodes)
    for directory in (results / "machine" / str(scale)).glob("*/"):
        if directory.name not in kept:
            shutil.rmtree(directory, ignore_errors=True)


def read_machines(results: Path) -> dict[str, tuple[Machine, ...]]:
    """Return the nodes of each scale, in the order of the scales' sizes and of the nodes' names."""
    found: dict[str, list[Machine]] = {}
    for path in sorted((results / "machine").glob("*/*/machine.json")):
        machine = MachineDirectory(path.parent).read()
        if machine is not None:
            found.setdefault(machine.scale, []).append(machine)
    return {scale: tuple(found[scale]) for scale in sorted(found, key=_size)}


def _size(scale: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", scale))
