"""What the nodes of a partition offer a job: GPUs, CPUs and memory, as Slurm counts them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ddp_ladder.common.formats import count
from ddp_ladder.settings.terms import is_mig
from ddp_ladder.slurm.query import records, run_command

_GPUS = re.compile(r"\bgpu(?::([^:,()]+))?:([0-9]{1,9})(?![0-9])")
_STARTS_NOTHING = re.compile(r"\b(DOWN|DRAIN|FAIL|MAINT|NOT_RESPONDING)|\*")  # not POWERED_DOWN: a job wakes it


@dataclass(frozen=True)
class Shape:
    """What one node offers."""

    gpus: int
    gres: str  # name of its GPUs in Slurm, of the most common type; empty without GPUs
    cpus: int
    memory_mb: int

    @property
    def of_one_slice(self) -> Shape:
        """The shape itself; of MIG slices, of which a process sees one, a slice with its share of the node."""
        if not is_mig(self.gres):
            return self
        return Shape(1, self.gres, max(1, self.cpus // self.gpus), self.memory_mb // self.gpus)

    def __str__(self) -> str:
        gpus = f"{count(self.gpus, 'GPU')} ({self.gres})" if self.gpus else "no GPU"
        return f"{gpus}, {count(self.cpus, 'CPU')} and {self.memory_mb} MB"


@dataclass(frozen=True)
class Partition:
    """A partition."""

    name: str
    shapes: Mapping[Shape, int]  # how many of its nodes have which shape, the most common one first
    down: Mapping[str, Shape]  # of these the nodes that start no job now: ``node2 (IDLE+DRAIN)``

    @property
    def usual(self) -> Shape:
        """The shape that most of its nodes have; of those with GPUs, if any has one."""
        return max(self.shapes, key=lambda shape: (shape.gpus > 0, self.shapes[shape]))

    @property
    def in_words(self) -> str:
        """``gpu: 6 nodes with 4 GPUs (gpu:a100), 8 CPUs and 16000 MB``."""
        nodes = ", ".join(f"{count(number, 'node')} with {shape}" for shape, number in self.shapes.items())
        return f"{self.name}: {nodes or 'no nodes'}"

    @property
    def is_down(self) -> bool:
        """True if none of its nodes starts a job now."""
        return len(self.down) == sum(self.shapes.values())


def read_nodes() -> list[dict[str, str]]:
    """Ask Slurm for its nodes. Raises SlurmError."""
    return list(records(run_command(["scontrol", "--oneliner", "--all", "show", "node"]), "NodeName"))


def shapes_of(partition: Mapping[str, str], nodes: Iterable[Mapping[str, str]]) -> Partition:
    """Return a partition's shapes, from its record and those of all nodes."""
    name = partition["PartitionName"]
    own = [node for node in nodes if name in node.get("Partitions", "").split(",")]
    shapes = [(node, _shape(node, partition)) for node in own]
    down = {
        f"{node['NodeName']} ({node['State']})": shape
        for node, shape in shapes
        if _STARTS_NOTHING.search(node.get("State", ""))
    }
    return Partition(name, dict(Counter(shape for _, shape in shapes).most_common()), down)


def _shape(node: Mapping[str, str], partition: Mapping[str, str]) -> Shape:
    gpus = Counter[str]()
    for kind, number in _GPUS.findall(node.get("Gres", "")):
        gpus[f"gpu:{kind}" if kind else "gpu"] += int(number)
    ((gres, most),) = gpus.most_common(1) or [("", 0)]
    return Shape(
        most,
        gres,
        _least(node.get("CPUEfctv") or node.get("CPUTot"), partition.get("MaxCPUsPerNode")),
        _least(node.get("RealMemory"), partition.get("MaxMemPerNode"), reserved=node.get("MemSpecLimit")),
    )


def _least(amount: str | None, limit: str | None, reserved: str | None = None) -> int:
    """Return an amount without what is reserved for the system, and within a limit such as UNLIMITED or 6."""
    left = _number(amount) - _number(reserved)
    return min(left, _number(limit) or left)


def _number(text: str | None) -> int:
    return int(text) if text and re.fullmatch("[0-9]{1,18}", text) else 0
