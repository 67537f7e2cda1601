"""Collect what a node is made of: as an ordinary user, each command with a time limit; what fails becomes a note."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ddp_ladder.common.bounded import run_bounded
from ddp_ladder.machine.cpuset import own_cpuset
from ddp_ladder.machine.lscpu import parse_lscpu
from ddp_ladder.machine.model import Machine, MachineGpu, NetworkInterface, NumaFacts
from ddp_ladder.machine.nvidia_smi import (
    QUERY,
    TOPOLOGY,
    Queried,
    Section,
    TopologyRow,
    number_of,
    parse_query,
    parse_topology,
    text_of,
)
from ddp_ladder.node.gpus import visible_indices
from ddp_ladder.node.network import addresses
from ddp_ladder.node.numa import SYS, attachment, cpus_text, numa_nodes

COMMAND_S = 20.0  # nvidia-smi needs seconds where no persistence daemon keeps the driver loaded
MIB = 1024**2
LONGEST_NOTE = 200  # characters of a command's message


@dataclass
class Answers:
    """What the commands printed, by file name, and notes of those that did not."""

    texts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def ask(self, file: str, command: str, *arguments: str, environment: Mapping[str, str]) -> str | None:
        """Run a command and keep its output as a file of this name; None, with a note, if it fails."""
        shown = " ".join((command, *arguments))
        path = shutil.which(command, path=environment.get("PATH", os.defpath))
        if path is None:
            self.notes.append(f"{shown}: there is no {command} in PATH")
            return None
        try:
            code, printed = run_bounded((path, *arguments), COMMAND_S, {**environment, "LC_ALL": "C"})
        except (OSError, subprocess.TimeoutExpired) as error:
            late = isinstance(error, subprocess.TimeoutExpired)
            self.notes.append(f"{shown}: {f'no answer in {COMMAND_S:g} s' if late else error}")
            return None
        if code != 0:
            self.notes.append(f"{shown} ended with {code}: {printed.strip()[:LONGEST_NOTE]}")
            return None
        self.texts[file] = printed
        return printed


def collect(
    job_id: str,
    scale: str,
    node: str,
    interface: str,
    has_gpus: bool,
    environment: Mapping[str, str],
    sys: Path = SYS,
) -> tuple[Machine, dict[str, str]]:
    """Return what this node is made of, and the texts of the commands by file name.

    node: its name in the job. interface: the one that the runs use. has_gpus: the runs train on CUDA; else nvidia-smi
    is not asked.
    """
    answers = Answers()
    lscpu = answers.ask("lscpu.txt", "lscpu", environment=environment)
    queried, rows = Queried(None, None, {}), dict[int, TopologyRow]()
    if has_gpus:
        query = answers.ask("nvidia-smi-q.txt", "nvidia-smi", *QUERY, environment=environment)
        topology = answers.ask("topo.txt", "nvidia-smi", *TOPOLOGY, environment=environment) if query else None
        queried, rows = parse_query(query or ""), parse_topology(topology or "")
    machine = Machine(
        schema_version=1,
        job_id=job_id,
        scale=scale,
        node=node,
        host=socket.gethostname(),
        taken_at_s=time.time(),
        kernel=platform.release(),
        os=_os(),
        cpu=parse_lscpu(lscpu) if lscpu else None,
        memory_bytes=psutil.virtual_memory().total,
        numa_nodes=tuple(
            NumaFacts(number=node.number, cpus=cpus_text(node.cpus), memory_bytes=node.memory_bytes)
            for node in numa_nodes(sys)
        ),
        cpuset=own_cpuset(sys=sys),
        interface=_interface(interface),
        driver=queried.driver,
        cuda=queried.cuda,
        gpus=gpus(queried, rows, environment.get("CUDA_VISIBLE_DEVICES"), sys),
        notes=tuple(answers.notes),
    )
    return machine, answers.texts


def gpus(
    queried: Queried, rows: Mapping[int, TopologyRow], visible_devices: str | None, sys: Path = SYS
) -> tuple[MachineGpu, ...]:
    """Return the GPUs, with what /sys and the topology tell of their places."""
    uuids = [text_of(section, "GPU UUID") or "" for section in queried.gpus.values()]
    visible = visible_indices(visible_devices, uuids)
    return tuple(
        _gpu(index, bus_id, section, index in visible, rows.get(index, TopologyRow()), sys)
        for index, (bus_id, section) in enumerate(queried.gpus.items())
    )


def _gpu(index: int, bus_id: str, section: Section, visible: bool, row: TopologyRow, sys: Path) -> MachineGpu:
    def whole(factor: int, *paths: str) -> int | None:
        number = number_of(section, *paths)
        return None if number is None else int(number) * factor

    place = attachment(bus_id, sys)
    limits = ("GPU Power Readings/Current Power Limit", "Power Readings/Enforced Power Limit")
    return MachineGpu(
        index=index,
        name=text_of(section, "Product Name"),
        uuid=text_of(section, "GPU UUID"),
        bus_id=bus_id,
        visible=visible,
        memory_bytes=whole(MIB, "FB Memory Usage/Total"),
        power_limit_w=number_of(section, *limits, "Power Readings/Power Limit"),
        power_limit_max_w=number_of(section, "GPU Power Readings/Max Power Limit", "Power Readings/Max Power Limit"),
        max_sm_clock_mhz=whole(1, "Max Clocks/SM"),
        pcie_generation=whole(1, "PCI/GPU Link Info/PCIe Generation/Max"),
        pcie_width=whole(1, "PCI/GPU Link Info/Link Width/Max"),
        persistence_mode=text_of(section, "Persistence Mode"),
        compute_mode=text_of(section, "Compute Mode"),
        ecc_mode=text_of(section, "ECC Mode/Current", "Ecc Mode/Current"),
        mig_mode=text_of(section, "MIG Mode/Current"),
        numa_node=row.numa_node if place.numa_node is None else place.numa_node,
        numa_cpus=None if place.cpus is None else cpus_text(place.cpus),
        links=dict(row.links),
    )


def _interface(name: str) -> NetworkInterface:
    stats = psutil.net_if_stats().get(name)
    return NetworkInterface(
        name=name,
        address=addresses().get(name),
        speed_mbit_per_s=(stats.speed or None) if stats else None,
        mtu=stats.mtu if stats else None,
    )


def _os() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None
