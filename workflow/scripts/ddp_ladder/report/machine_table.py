"""The report's table "The machine": what the nodes are made of, with places only where they differ. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddp_ladder.common.formats import count, in_short
from ddp_ladder.machine.model import Machine, MachineGpu
from ddp_ladder.node.numa import cpus_text, parse_cpus

Machines = Mapping[str, Sequence[Machine]]
GIB = 1024**3


@dataclass(frozen=True)
class MachineRow:
    """A fact: its values, each with the scales and nodes that have it if there are several values."""

    name: str
    values: tuple[tuple[str, str], ...]


def machine_rows(machines: Machines) -> tuple[MachineRow, ...]:
    """Return the rows of which anything is known. machines: the nodes of each scale."""
    facts: Mapping[str, Callable[[Machine], str | None]] = {
        "processors": _processors,
        "NUMA nodes": _numa_nodes,
        "memory": lambda machine: _gib(machine.memory_bytes),
        "GPUs": _gpus,
        "GPU links": _links,
        "NUMA nodes of the GPUs": _gpu_places,
        "driver": _driver,
        "interface": _interface,
        "system": lambda machine: ", ".join(filter(None, (machine.os, f"kernel {machine.kernel}"))),
        "CPUs of the job step": lambda machine: machine.cpuset.allowed_cpus,
        "CPUs of the ranks": _ranks,
        "not known": lambda machine: "; ".join(machine.notes) or None,
    }
    rows = (MachineRow(name, _values(machines, fact)) for name, fact in facts.items())
    return tuple(row for row in rows if row.values)


def _values(machines: Machines, fact: Callable[[Machine], str | None]) -> tuple[tuple[str, str], ...]:
    places: dict[str, dict[str, list[str]]] = {}
    known = 0
    for scale, nodes in machines.items():
        for machine in nodes:
            known += 1
            if (value := fact(machine)) is not None:
                places.setdefault(value, {}).setdefault(scale, []).append(machine.node)
    everywhere = len(places) == 1 and sum(map(len, next(iter(places.values())).values())) == known
    return tuple((value, "" if everywhere else _places(where, machines)) for value, where in places.items())


def _places(where: Mapping[str, Sequence[str]], machines: Machines) -> str:
    """Return ``1x1, 2x4 on node1``: a scale alone stands for all its nodes."""
    return ", ".join(
        scale if len(nodes) == len(machines[scale]) else f"{scale} on {in_short(nodes)}"
        for scale, nodes in where.items()
    )


def _processors(machine: Machine) -> str | None:
    cpu = machine.cpu
    if cpu is None:
        return None
    cores = f", {count(cpu.cores_per_socket, 'core')} each" if cpu.cores_per_socket else ""
    threads = f", {cpu.threads_per_core} threads per core" if (cpu.threads_per_core or 1) > 1 else ""
    return f"{cpu.sockets or 1} x {cpu.model or cpu.architecture}{cores}{threads}"


def _numa_nodes(machine: Machine) -> str | None:
    """Return the nodes with CPUs; those with memory alone belong to GPUs."""
    nodes = [node for node in machine.numa_nodes if node.cpus]
    if not nodes:
        return None
    return f"{len(nodes)}: " + "; ".join(
        f"{node.number} with CPUs {node.cpus}" + (f", {_gib(node.memory_bytes)}" if node.memory_bytes else "")
        for node in nodes
    )


def _gpus(machine: Machine) -> str | None:
    kinds = Counter(_gpu(gpu) for gpu in machine.gpus)
    hidden = sum(not gpu.visible for gpu in machine.gpus)
    text = "; ".join(f"{number} x {kind}" for kind, number in kinds.items())
    return f"{text}; {hidden} not in the job step" if hidden else text or None


def _gpu(gpu: MachineGpu) -> str:
    pcie = f"PCIe {gpu.pcie_generation} x{gpu.pcie_width}" if gpu.pcie_generation and gpu.pcie_width else None
    parts = (
        _gib(gpu.memory_bytes),
        f"{gpu.power_limit_w:g} W" if gpu.power_limit_w else None,
        pcie,
        f"ECC {gpu.ecc_mode.lower()}" if gpu.ecc_mode else None,
        "MIG" if gpu.mig_mode == "Enabled" else None,
        f"compute mode {gpu.compute_mode}" if gpu.compute_mode not in (None, "Default") else None,
    )
    return f"{gpu.name or 'a GPU'} ({', '.join(filter(None, parts))})"


def _links(machine: Machine) -> str | None:
    """Return how many links of each kind there are between GPUs, and from GPUs to network adapters."""
    links = {
        frozenset((f"GPU{gpu.index}", device)): (link, "GPU" if device.startswith("GPU") else "network adapter")
        for gpu in machine.gpus
        for device, link in gpu.links.items()
    }
    parts = []
    for kind in ("GPU", "network adapter"):
        counted = Counter(link for link, other in links.values() if other == kind)
        if counted:
            parts.append(f"to a {kind}: " + ", ".join(f"{number} x {link}" for link, number in counted.most_common()))
    return "; ".join(parts) or None


def _gpu_places(machine: Machine) -> str | None:
    places = [
        f"GPU {gpu.index} at {gpu.numa_node}" + (f" (CPUs {gpu.numa_cpus})" if gpu.numa_cpus else "")
        for gpu in machine.gpus
        if gpu.numa_node is not None
    ]
    return "; ".join(places) or None


def _driver(machine: Machine) -> str | None:
    cuda = f", for CUDA up to {machine.cuda}" if machine.cuda else ""
    return f"{machine.driver}{cuda}" if machine.driver else None


def _interface(machine: Machine) -> str:
    interface = machine.interface
    speed = f"{interface.speed_mbit_per_s / 1000:g} Gbit/s" if interface.speed_mbit_per_s else None
    mtu = f"MTU {interface.mtu}" if interface.mtu else None
    return ", ".join(filter(None, (interface.name, speed, mtu)))


def _ranks(machine: Machine) -> str | None:
    """Return the CPUs of each rank of the node, by its place: nodes whose ranks are bound alike share a value."""
    if not machine.ranks:
        return None
    allowed = machine.cpuset.allowed_cpus
    cpus = [rank.cpus for rank in machine.ranks]
    if allowed is not None and set(cpus) == {allowed}:
        return f"every rank all of the job step's{_bound_threads(machine)}"
    if len(set(cpus)) == 1:
        return f"every rank {cpus[0]}{_bound_threads(machine)}"
    return in_short([f"local rank {k} {text}" for k, text in enumerate(cpus)], most=16) + _bound_threads(machine)


def _bound_threads(machine: Machine) -> str:
    """Return a remark if threads are bound to other CPUs than their rank's main thread."""
    other = sum(each.threads for rank in machine.ranks for each in rank.bound if each.cpus != rank.cpus)
    if not other:
        return ""
    used = {cpu for rank in machine.ranks for each in rank.bound for cpu in parse_cpus(each.cpus)}
    return f"; {count(other, 'thread')} bound elsewhere, all within {cpus_text(used)}"


def _gib(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else f"{size_bytes / GIB:.0f} GiB"
