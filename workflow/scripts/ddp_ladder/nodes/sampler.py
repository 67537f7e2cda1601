"""What a node is made of, and its monitor: a thread of its agent, which writes a line per sample, and the lines' form.

Nothing that the monitor does fails the run. In a sample (nodes/node<k>.csv) an unknown value is empty; a rate is over
the time since the sample before it; columns of what a node does not have are absent. What a node is made of is in
results/machine/<scale>/<node>/machine.json, written by the preflight of each job of the scale.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

import psutil
from pydantic import Field

from ddp_ladder.common.files import file_text, opened, readable, write_json
from ddp_ladder.common.formats import count, fields
from ddp_ladder.common.model import Count, Model, Name, Several, Version1
from ddp_ladder.common.process import run_bounded
from ddp_ladder.plan.plan import RawFile
from ddp_ladder.platform.accelerators import Gpus, MonitoredGpu, NodeGpu, Value
from ddp_ladder.settings.terms import Scale

TIME = "time_s"
THROTTLE_REASONS = "throttle_reasons"
NODE = (
    TIME,  # unix time by this node's clock
    "cpu_fraction",  # mean of the CPUs that the agent may use, 0 to 1
    "cpu_busiest_fraction",  # the busiest of them
    "node_memory_used_bytes",
    "training_cpu_cores",  # CPU seconds per second of the processes of this run on this node
    "training_rss_bytes",
    "network_received_bytes_per_s",  # the run's interface
    "network_sent_bytes_per_s",
)
FABRIC = ("fabric_received_bytes_per_s", "fabric_sent_bytes_per_s")  # all ports of InfiniBand or Slingshot
GPU = (
    "busy_fraction",  # NVML's utilization.gpu: share of time in which any kernel ran
    "memory_used_bytes",
    "power_w",
    "energy_j",  # since the first sample
    "temperature_c",
    "sm_clock_mhz",
    THROTTLE_REASONS,  # joined by +; none: no reason; empty: not reported
)


def columns(fabric: bool, gpus: int) -> tuple[str, ...]:
    """Return the header of a node with this hardware. fabric: it has ports that can be counted."""
    of_gpus = tuple(f"gpu{index}_{name}" for index in range(gpus) for name in GPU)
    return (*NODE, *(FABRIC if fabric else ()), *of_gpus)


class Fabric(Model):
    """A port of InfiniBand or Slingshot whose counters are sampled."""

    name: Name = Field(description="Device and port, or the interface.")
    bits_per_s: Count | None


class MonitorFile(RawFile):
    """What the samples of a node are of (nodes/node<k>.monitor.json), written when the sampling starts."""

    node_rank: Count
    node: Name
    host: Name
    every_s: float = Field(gt=0, description="Seconds from one sample to the next.")
    interface: Name = Field(description="The run's network interface.")
    interface_bits_per_s: Count | None
    cpus: Several[Count] = Field(description="The CPUs that the agent may use.")
    memory_bytes: Count = Field(description="Of the node.")
    fabrics: Several[Fabric]
    gpus: Several[MonitoredGpu]
    notes: Several[str] = Field(description="What cannot be sampled, and why.")


class MonitorEnd(Model):
    """The monitor's part of an agent's end record."""

    samples: Count
    cpu_s: float = Field(ge=0, description="CPU seconds that the sampling took.")
    error: Name | None = Field(None, description="Why samples are missing.")


# --- The last sample of a node, or line of another table, from the end of its file: small, whatever the file's size.


TAIL_BYTES = 8192  # of a table: more than one line, also of a node with eight GPUs


def last_cells(path: Path) -> dict[str, str]:
    """Return the known values of the last complete line of a table as text; empty before the first one.

    Raises OSError or ValueError.
    """
    with opened(path) as file:
        header = file.readline()
        file.seek(max(len(header), os.fstat(file.fileno()).st_size - TAIL_BYTES))
        *lines, _ = file.read().split(b"\n")  # the last line is being written, or empty
    if not lines:
        return {}
    names, cells = (line.decode().strip().split(",") for line in (header, lines[-1]))
    return {name: cell for name, cell in zip(names, cells, strict=True) if cell}


def last_sample(path: Path) -> dict[str, float]:
    """Return the figures of the last complete line of a node's samples; empty before the first one."""
    return {name: float(cell) for name, cell in last_cells(path).items() if THROTTLE_REASONS not in name}


def of_gpus(sample: Mapping[str, float], column: str) -> list[float]:
    """Return the values of a column of all GPUs in a node's sample."""
    return [value for name, value in sample.items() if name.startswith("gpu") and name.partition("_")[2] == column]


T = TypeVar("T")


@dataclass(frozen=True)
class ProcessUse:
    """What a process used so far."""

    own_s: float  # CPU time
    waited_s: float  # CPU time of its children that ended, and theirs
    rss_bytes: int

    @classmethod
    def of(cls, process: psutil.Process) -> ProcessUse:
        with process.oneshot():
            times, rss_bytes = process.cpu_times(), process.memory_info().rss
        return cls(times.user + times.system, times.children_user + times.children_system, rss_bytes)


class TrainingProcesses:
    """Finds and measures the descendants of the agents of this run on this node, without the agents themselves."""

    def __init__(self, agent: int, siblings: bool) -> None:
        """agent: its process id. siblings: its parent, Slurm's job step, started the run's other agents here, too."""
        self.agents = {agent}  # ids of processes, as all others
        self.ours: set[int] = set()  # of the training
        self._step = psutil.Process(agent).ppid() if siblings else None
        self._seen = {agent}
        self._used: dict[int, ProcessUse] = {}

    def sample(self) -> tuple[float, int]:
        """Return the CPU seconds since the sample before, and the resident bytes."""
        self._look_for_new()
        used = dict(_each(self.ours | self.agents, ProcessUse.of))
        cpu_s = cpu_between(self._used, used, self.agents)
        self._used = used
        return cpu_s, sum(use.rss_bytes for pid, use in used.items() if pid not in self.agents)

    def _look_for_new(self) -> None:
        pids = {*psutil.pids()}
        new = dict(_each(pids - self._seen, psutil.Process.ppid))
        self.agents |= {pid for pid, parent in new.items() if parent == self._step}
        self.agents &= pids
        self.ours = (self.ours | descendants(self.agents | self.ours, new)) & pids - self.agents
        self._seen = (self._seen | new.keys()) & pids


def descendants(roots: Collection[int], parents: Mapping[int, int]) -> set[int]:
    """Return the processes in parents, a mapping from process to parent, that descend from the roots."""
    known: set[int] = set()
    left = dict(parents)
    while more := {pid for pid, parent in left.items() if parent in roots or parent in known}:
        known |= more
        left = {pid: parent for pid, parent in left.items() if pid not in more}
    return known


def cpu_between(before: Mapping[int, ProcessUse], now: Mapping[int, ProcessUse], agents: Collection[int]) -> float:
    """Return the CPU seconds of the processes between two samples, without the agents' own.

    The time of a child that ended is what its parent waited for, less what was counted while it ran.
    """
    own_s = waited_s = 0.0
    for pid, use in now.items():
        last = before.get(pid)
        own_s += 0.0 if pid in agents else use.own_s - (last.own_s if last else 0.0)
        waited_s += use.waited_s - (last.waited_s if last else 0.0)
    ended_s = sum(use.own_s + use.waited_s for pid, use in before.items() if pid not in now)
    return max(0.0, own_s) + max(0.0, waited_s - ended_s)


def _each(pids: Collection[int], read: Callable[[psutil.Process], T]) -> Iterator[tuple[int, T]]:
    """Yield each process that has not ended, with what is read of it."""
    for pid in pids:
        with suppress(psutil.Error):
            yield pid, read(psutil.Process(pid))


# --- The monitor of a node: a thread of its agent, which writes a line per sample. Nothing that it does fails the
# run.


JOIN_S = 5.0  # for a sample that is being taken when the agent ends
SHORTEST_S = 0.1  # between two samples of a rate: counters of CPU time have steps of 10 ms
SYS = Path("/sys")
_DIGITS = 4  # of a figure that is no rate of bytes
_INFINIBAND_WORD = 4  # bytes: the unit of port_rcv_data and port_xmit_data


class NodeMonitor:
    """Samples a node until its end. A thread, so that no process is left behind, whatever ends the agent."""

    def __init__(
        self,
        about: Path,
        samples: Path,
        every_s: float,
        open_sampler: Callable[[], NodeSampler],
        run: Mapping[str, Any],
    ) -> None:
        """Start to sample. about, samples: the files. run: fields of about that name the run, and the node in it."""
        self._about, self._samples, self._every_s, self._run = about, samples, every_s, run
        self._open = open_sampler
        self._sampler: NodeSampler | None = None
        self._count, self._cpu_s = 0, 0.0
        self._error: str | None = None
        self._end = threading.Event()
        # A daemon: a call of a driver that never returns does not keep the agent from ending.
        self._thread = threading.Thread(target=self._sample_until_end, name="monitor", daemon=True)
        self._thread.start()

    def end(self) -> MonitorEnd:
        """Take the last sample and return what was done, after JOIN_S at the latest."""
        self._end.set()
        self._thread.join(JOIN_S)
        errors = [self._error] if self._error else []
        if self._thread.is_alive():
            errors.append(f"the last sample was not taken within {JOIN_S:g} s: a driver may hang")
        errors += self._sampler.errors if self._sampler else []
        return MonitorEnd(samples=self._count, cpu_s=round(self._cpu_s, 3), error="; ".join(errors) or None)

    def _sample_until_end(self) -> None:
        try:
            if sys.platform != "linux":
                raise OSError("a node is sampled on Linux only")  # /proc
            sampler = self._sampler = self._open()
            self._describe(sampler)
            with self._samples.open("w", encoding="utf-8") as file:
                print(",".join(sampler.header), file=file, flush=True)
                self._sample_to(file, sampler)
            self._describe(sampler)  # again for its CPUs: more agents may have come
        except Exception as error:  # of any kind: it is reported in the agent's end record
            self._error = f"{type(error).__name__}: {error}"
        self._cpu_s = time.thread_time()

    def _describe(self, sampler: NodeSampler) -> None:
        about = MonitorFile(
            **self._run,
            host=socket.gethostname(),
            every_s=self._every_s,
            interface=sampler.interface,
            interface_bits_per_s=sampler.interface_bits_per_s,
            cpus=tuple(sorted(sampler.cpus)),
            memory_bytes=psutil.virtual_memory().total,
            fabrics=tuple(port.about for port in sampler.ports),
            gpus=tuple(gpu.about for gpu in sampler.gpus.sampled),
            notes=sampler.gpus.notes,
        )
        write_json(self._about, about.model_dump())

    def _sample_to(self, file: TextIO, sampler: NodeSampler) -> None:
        begin_s = time.monotonic()
        while True:
            last = self._end.is_set()
            row = sampler.sample()
            print(",".join(shown(name, row.get(name)) for name in sampler.header), file=file, flush=True)
            self._count += 1
            self._cpu_s = time.thread_time()
            if last:
                return
            now_s = time.monotonic()
            # At multiples of the interval, whatever the samples before took.
            self._end.wait(self._every_s - (now_s - begin_s) % self._every_s)


def shown(name: str, value: Value) -> str:
    """Return a value as it is written; empty if it is unknown."""
    if value is None:
        return ""
    if isinstance(value, float):
        return str(round(value)) if name.endswith(("bytes", "bytes_per_s")) else str(round(value, _DIGITS))
    return str(value)


class NodeSampler:
    """Reads the counters of a node, and keeps the last ones for the rates."""

    def __init__(self, interface: str, gpus: Gpus, siblings: bool, descendants: bool = True) -> None:
        """siblings: the run has several agents on this node. descendants: its ranks descend from them."""
        self.interface, self.gpus, self._descendants = interface, gpus, descendants
        link = psutil.net_if_stats().get(interface)
        self.interface_bits_per_s = link.speed * 1_000_000 if link and link.speed else None
        self.ports = ports()
        self.header = columns(bool(self.ports), len(gpus.sampled))
        self.cpus = {*os.sched_getaffinity(0)}  # those that the agents may use
        self._training = TrainingProcesses(os.getpid(), siblings)
        self._counters: dict[str, tuple[float, int, int]] = {}
        self._last_s: float | None = None
        self._errors: dict[str, str] = {}

    def sample(self) -> dict[str, Value]:
        """Return the values of all columns; a value that cannot be read is left out."""
        now_s = time.monotonic()
        elapsed_s = 0.0 if self._last_s is None else now_s - self._last_s
        row: dict[str, Value] = {"time_s": time.time()}
        groups: Mapping[str, Callable[[], Mapping[str, Value]]] = {
            "processes": lambda: self._of_training(elapsed_s),
            "CPUs": lambda: self._of_cpus(elapsed_s),
            "memory": self._of_memory,
            "network": self._of_network,
            "fabric": self._of_fabric,
            "GPUs": self.gpus.sample,
        }
        for name, group in groups.items():
            try:
                row.update(group())
            except Exception as error:  # of any kind: neither the run nor the other values may end because of it
                self._errors.setdefault(name, f"{type(error).__name__}: {error}")
        self._last_s = now_s
        return row

    @property
    def errors(self) -> list[str]:
        return [*(f"{name}: {why}" for name, why in self._errors.items()), *self.gpus.errors]

    def _of_training(self, elapsed_s: float) -> Mapping[str, Value]:
        cpu_s, rss_bytes = self._training.sample()
        for pid in self._training.agents:  # Slurm gives each agent CPUs of its own
            with suppress(OSError):  # it has ended
                self.cpus |= os.sched_getaffinity(pid)
        if not self._descendants:
            return {}
        cores = cpu_s / elapsed_s if elapsed_s >= SHORTEST_S else None
        return {"training_cpu_cores": cores, "training_rss_bytes": rss_bytes}

    def _of_cpus(self, elapsed_s: float) -> Mapping[str, Value]:
        every = psutil.cpu_percent(percpu=True)  # since the call before; psutil numbers the CPUs without gaps
        busy = [every[cpu] / 100 for cpu in self.cpus if cpu < len(every)] if elapsed_s >= SHORTEST_S else []
        return {"cpu_fraction": sum(busy) / len(busy), "cpu_busiest_fraction": max(busy)} if busy else {}

    def _of_memory(self) -> Mapping[str, Value]:
        memory = psutil.virtual_memory()
        return {"node_memory_used_bytes": memory.total - memory.available}

    def _of_network(self) -> Mapping[str, Value]:
        # /proc/net/dev is of the process's own network namespace, unlike /sys/class/net
        counters = psutil.net_io_counters(pernic=True, nowrap=False).get(self.interface)
        if counters is None:
            raise OSError(f"no interface {self.interface} in /proc/net/dev")
        return self._rates("network", counters.bytes_recv, counters.bytes_sent)

    def _of_fabric(self) -> Mapping[str, Value]:
        counts = [port.bytes() for port in self.ports]
        return self._rates("fabric", sum(got for got, _ in counts), sum(sent for _, sent in counts))

    def _rates(self, name: str, received: int, sent: int) -> Mapping[str, Value]:
        """Return the rates since the call before; none after a moment, or of a counter that was set back."""
        now_s = time.monotonic()
        last_s, *before = self._counters.get(name, (now_s, received, sent))
        self._counters[name] = now_s, received, sent
        if now_s - last_s < SHORTEST_S:
            return {}
        ways = zip(("received", "sent"), before, (received, sent), strict=True)
        return {f"{name}_{way}_bytes_per_s": (now - then) / (now_s - last_s) for way, then, now in ways if now >= then}


@dataclass(frozen=True)
class Port:
    """A port of InfiniBand or Slingshot with counters in files."""

    about: Fabric
    received: Path
    sent: Path
    unit_bytes: int  # of the counters

    def bytes(self) -> tuple[int, int]:
        """Return the bytes received and sent. Raises OSError or ValueError."""
        # Slingshot's counters have the time behind an @.
        received, sent = (int(path.read_text().partition("@")[0]) for path in (self.received, self.sent))
        return received * self.unit_bytes, sent * self.unit_bytes


def ports(sys: Path = SYS) -> list[Port]:
    """Return the active ports of InfiniBand and Slingshot.

    Slingshot's counters are named as HPE's documentation of its NIC and public tools name them.
    """
    active = []
    for port in sorted((sys / "class/infiniband").glob("*/ports/*")):
        if "ACTIVE" in (file_text(port / "state") or ""):
            rate = re.match(r"([\d.]+) Gb/sec", file_text(port / "rate") or "")  # 200 Gb/sec (4X HDR)
            bits_per_s = round(float(rate[1]) * 1e9) if rate else None
            fabric = Fabric(name=f"{port.parents[1].name}/{port.name}", bits_per_s=bits_per_s)
            counters = port / "counters"
            active.append(Port(fabric, counters / "port_rcv_data", counters / "port_xmit_data", _INFINIBAND_WORD))
    for device in sorted((sys / "class/cxi").glob("cxi*/device")):
        speeds = [(file_text(path) or "").strip() for path in sorted((device / "net").glob("*/speed"))]
        bits_per_s = next((int(speed) * 1_000_000 for speed in speeds if speed.isdigit()), None)
        fabric, counters = Fabric(name=device.parent.name, bits_per_s=bits_per_s), device / "telemetry"
        active.append(Port(fabric, counters / "hni_sts_rx_ok_octets", counters / "hni_sts_tx_ok_octets", 1))
    return active


COMMAND_S = 20.0  # for lscpu
GIB = 1024**3


class NodeDescription(Model):
    """One node of a scale's job (results/machine/<scale>/<node>/machine.json)."""

    schema_version: Version1
    scale: str
    node: str
    in_words: str = Field(description="The line of the report.")


def machine_directory(results: Path, scale: object) -> Path:
    """Return the directory of the nodes of a scale."""
    return results / "machine" / str(scale)


def read_machines(results: Path) -> dict[str, tuple[NodeDescription, ...]]:
    """Return the nodes of each scale, by the scales' sizes and the nodes' names. Damaged files are left out."""
    nodes: dict[str, list[NodeDescription]] = {}
    for path in sorted((results / "machine").glob("*/*/machine.json")):
        if node := readable(NodeDescription, path):
            nodes.setdefault(node.scale, []).append(node)
    return {scale: tuple(nodes[scale]) for scale in sorted(nodes, key=lambda name: Scale.parse(name).world_size)}


def describe(results: Path, scale: str, node: str, interface: str, gpus: Sequence[NodeGpu]) -> NodeDescription:
    """Write what this node is made of; return it. Raises OSError.

    node: its name in the job. interface: the one that the runs use.
    """
    kinds = ", ".join(f"{number} x {name}" for name, number in Counter(gpu.name for gpu in gpus).items())
    words = [*([f"{kinds} (driver {gpus[0].driver})"] if gpus else []), *_words(interface)]
    description = NodeDescription(schema_version=1, scale=scale, node=node, in_words="; ".join(words))
    write_json(machine_directory(results, scale) / node / "machine.json", description.model_dump())
    return description


def _words(interface: str) -> Iterator[str]:
    """Yield what the node has, as far as it is known: from lscpu, and of the system."""
    try:
        code, printed = run_bounded(["lscpu"], COMMAND_S, {**os.environ, "LC_ALL": "C"})
        cpus = fields(printed) if code == 0 else {}
    except (OSError, subprocess.TimeoutExpired):
        cpus = {}
    if model := cpus.get("Model name") or cpus.get("BIOS Model name") or cpus.get("Architecture"):
        yield f"{cpus.get('Socket(s)', '1')} x {model}"
    yield count(os.cpu_count() or 1, "CPU")
    yield f"{psutil.virtual_memory().total / GIB:.0f} GiB"
    link = psutil.net_if_stats().get(interface)
    yield f"{interface}, {link.speed / 1000:g} Gbit/s" if link and link.speed else interface
    if adapters := sorted(path.name for kind in ("infiniband", "cxi") for path in (SYS / "class" / kind).glob("*")):
        yield f"adapters {', '.join(adapters)}"
    yield f"{_system_name()}, kernel {platform.release()}"


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()
