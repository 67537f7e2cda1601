"""NUMA nodes of this machine, and which of them its PCI devices are attached to, from /sys."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from ddp_ladder.common.files import file_text

SYS = Path("/sys")


def parse_cpus(text: str) -> tuple[int, ...]:
    """Return the CPUs of a list as Linux writes it, in order: ``0-3,8`` is 0, 1, 2, 3, 8. Raises ValueError."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cpus))


def cpus_text(cpus: Iterable[int]) -> str:
    """Return CPUs as Linux writes a list of them: ``0-3,8``."""
    runs = []
    for _, run in groupby(enumerate(sorted(set(cpus))), lambda placed: placed[1] - placed[0]):
        numbers = [cpu for _, cpu in run]
        runs.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return ",".join(runs)


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node. cpus: empty for one with memory alone, as a GPU's on a Grace Hopper."""

    number: int
    cpus: tuple[int, ...]
    memory_bytes: int | None


def numa_nodes(sys: Path = SYS) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes; none if the kernel does not show them."""
    found = []
    for directory in (sys / "devices/system/node").glob("node[0-9]*"):
        cpus = _cpus(directory / "cpulist")
        if cpus is not None:
            found.append(NumaNode(int(directory.name.removeprefix("node")), cpus, _memory_bytes(directory / "meminfo")))
    return tuple(sorted(found, key=lambda each: each.number))


@dataclass(frozen=True)
class Attachment:
    """Where a PCI device is attached. Null: unknown, or the same for all CPUs."""

    numa_node: int | None = None
    cpus: tuple[int, ...] | None = None


def attachment(bus_id: str, sys: Path = SYS) -> Attachment:
    """Return the NUMA node and the CPUs that are nearest to a PCI device.

    bus_id: as NVML and nvidia-smi write it, ``00000000:3B:00.0``, or as Linux does.
    """
    domain, _, place = bus_id.strip().lower().partition(":")
    device = sys / "bus/pci/devices" / f"{domain[-4:]}:{place}"
    node = file_text(device / "numa_node")
    if node is None or not node.strip().isdigit():  # -1: the firmware does not say
        return Attachment()
    return Attachment(int(node), _cpus(device / "local_cpulist") or None)


def _cpus(path: Path) -> tuple[int, ...] | None:
    text = file_text(path)
    try:
        return None if text is None else parse_cpus(text)
    except ValueError:
        return None


def _memory_bytes(path: Path) -> int | None:
    found = re.search(r"MemTotal:\s+(\d+) kB", file_text(path) or "")
    return int(found[1]) * 1024 if found else None
