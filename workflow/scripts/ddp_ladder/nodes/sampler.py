"""The monitor of a node: a thread of its agent, which writes a line per sample. Nothing that it does fails the run."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import psutil

from ddp_ladder.common.files import file_text, write_json
from ddp_ladder.nodes.files import Fabric, MonitorEnd, MonitorFile, columns
from ddp_ladder.nodes.gpus import SHORTEST_S, Gpus, Rates, Value
from ddp_ladder.nodes.processes import TrainingProcesses

JOIN_S = 5.0  # for a sample that is being taken when the agent ends
SYS = Path("/sys")
_DIGITS = 4  # of a figure that is no rate of bytes
_TIMES = 8  # of /proc/stat: user nice system idle iowait irq softirq steal; those of guests are in user and nice
_IDLE = (3, 4)
_INFINIBAND_WORD = 4  # bytes: the unit of port_rcv_data and port_xmit_data

CpuTimes = Mapping[int, tuple[int, int]]
"""Of each CPU: busy time and all time since the boot, in ticks."""


class NodeMonitor:
    """Samples a node until its end. A thread, so that no process is left behind, whatever ends the agent."""

    def __init__(
        self,
        about: Path,
        samples: Path,
        every_s: float,
        open_sampler: Callable[[], NodeSampler],
        describe: Callable[[NodeSampler], MonitorFile],
    ) -> None:
        """about, samples: the files. describe: returns the content of about, which may change while it samples."""
        self._about, self._samples, self._every_s = about, samples, every_s
        self._open, self._describe = open_sampler, describe
        self._sampler: NodeSampler | None = None
        self._described: MonitorFile | None = None
        self._count, self._cpu_s = 0, 0.0
        self._error: str | None = None
        self._end = threading.Event()
        # A daemon: a call of a driver that never returns does not keep the agent from ending.
        self._thread = threading.Thread(target=self._sample_until_end, name="monitor", daemon=True)

    def start(self) -> None:
        """Start to sample."""
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads are allowed
            self._error = str(error)

    def end(self) -> MonitorEnd:
        """Take the last sample and return what was done, after JOIN_S at the latest."""
        self._end.set()
        if self._thread.ident is not None:  # it was started
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
            self._sampler = self._open()
            self._describe_again(self._sampler)
            with self._samples.open("w", encoding="utf-8") as file:
                print(",".join(self._sampler.header), file=file, flush=True)
                self._sample_to(file, self._sampler)
        except Exception as error:  # of any kind: it is reported in the agent's end record
            self._error = f"{type(error).__name__}: {error}"
        self._cpu_s = time.thread_time()

    def _sample_to(self, file: TextIO, sampler: NodeSampler) -> None:
        begin_s = time.monotonic()
        while True:
            last = self._end.is_set()
            row = sampler.sample()
            print(",".join(shown(name, row.get(name)) for name in sampler.header), file=file, flush=True)
            self._count += 1
            self._describe_again(sampler)
            self._cpu_s = time.thread_time()
            if last:
                return
            now_s = time.monotonic()
            self._end.wait(next_s(begin_s, self._every_s, now_s) - now_s)

    def _describe_again(self, sampler: NodeSampler) -> None:
        described = self._describe(sampler)
        if described != self._described:
            write_json(self._about, described.model_dump())
            self._described = described


def next_s(begin_s: float, every_s: float, now_s: float) -> float:
    """Return when the next sample is due: at a multiple of the interval, whatever the ones before it took."""
    return begin_s + every_s * ((now_s - begin_s) // every_s + 1)


def shown(name: str, value: Value) -> str:
    """Return a value as it is written; empty if it is unknown."""
    if value is None:
        return ""
    if isinstance(value, float):
        return str(round(value)) if name.endswith(("bytes", "bytes_per_s")) else str(round(value, _DIGITS))
    return str(value)


class NodeSampler:
    """Reads the counters of a node, and keeps the last ones for the rates."""

    def __init__(self, interface: str, gpus: Gpus, siblings: bool) -> None:
        """siblings: the run has several agents on this node."""
        self.interface, self.gpus = interface, gpus
        link = psutil.net_if_stats().get(interface)
        self.interface_bits_per_s = link.speed * 1_000_000 if link and link.speed else None
        self.ports, notes = ports()
        self._training = TrainingProcesses(os.getpid(), siblings)
        self.cpus: frozenset[int] = frozenset()  # that the agents may use
        self._times: CpuTimes = {}
        self._rates = {"network": Rates(), "fabric": Rates()}
        self._last_s: float | None = None
        self.header = columns(bool(self.ports), len(gpus.each))
        self.notes = [*gpus.notes, *notes]
        self._errors: dict[str, str] = {}
        self._find_cpus()

    def sample(self) -> dict[str, Value]:
        """Return the values of all columns; a value that cannot be read is left out."""
        now_s = time.monotonic()
        row: dict[str, Value] = {"time_s": time.time()}
        groups: Mapping[str, Callable[[float], Mapping[str, Value]]] = {
            "processes": self._of_training,
            "CPUs": self._of_cpus,
            "memory": self._of_memory,
            "network": self._of_network,
            "fabric": self._of_fabric,
            "GPUs": self.gpus.sample,
        }
        for name, group in groups.items():
            try:
                row.update(group(now_s))
            except Exception as error:  # of any kind: neither the run nor the other values may end because of it
                self._errors.setdefault(name, f"{type(error).__name__}: {error}")
        self._last_s = now_s
        return row

    @property
    def errors(self) -> list[str]:
        """Why values are missing."""
        return [*(f"{name}: {why}" for name, why in self._errors.items()), *self.gpus.errors]

    def _find_cpus(self) -> None:
        """Find the CPUs of all agents: Slurm gives each task its own."""
        found: set[int] = set()
        for pid in self._training.agents:
            try:
                found |= os.sched_getaffinity(pid)
            except OSError:  # it has ended
                continue
        self.cpus |= found

    def _elapsed_s(self, now_s: float) -> float | None:
        """Return the time since the sample before; None if there is none, or it is too short for a rate."""
        elapsed_s = 0.0 if self._last_s is None else now_s - self._last_s
        return elapsed_s if elapsed_s >= SHORTEST_S else None

    def _of_training(self, now_s: float) -> Mapping[str, Value]:
        agents = self._training.agents
        training = self._training.sample()
        if self._training.agents != agents:
            self._find_cpus()
        elapsed_s, read = self._elapsed_s(now_s), training.read_bytes
        return {
            "training_cpu_cores": None if elapsed_s is None else training.cpu_s / elapsed_s,
            "training_rss_bytes": training.rss_bytes,
            "training_private_bytes": training.private_bytes,
            "training_processes": training.processes,
            "training_threads": training.threads,
            "disk_read_bytes_per_s": None if elapsed_s is None or read is None else read / elapsed_s,
        }

    def _of_cpus(self, now_s: float) -> Mapping[str, Value]:
        times = cpu_times()
        use = cpu_use(self._times, times, self.cpus) if self._elapsed_s(now_s) else CpuUse()
        self._times = times
        return {
            "cpu_fraction": use.usable,
            "cpu_busiest_fraction": use.busiest,
            "node_cpu_fraction": use.node,
            "load_1min": os.getloadavg()[0],
        }

    def _of_memory(self, _now_s: float) -> Mapping[str, Value]:
        memory, shared = psutil.virtual_memory(), os.statvfs("/dev/shm")
        return {
            "node_memory_used_bytes": memory.total - memory.available,
            "shm_used_bytes": (shared.f_blocks - shared.f_bfree) * shared.f_frsize,
        }

    def _of_network(self, now_s: float) -> Mapping[str, Value]:
        # /proc/net/dev is of the process's own network namespace, unlike /sys/class/net
        counters = psutil.net_io_counters(pernic=True, nowrap=False).get(self.interface)
        if counters is None:
            raise OSError(f"no interface {self.interface} in /proc/net/dev")
        return self._traffic("network", counters.bytes_recv, counters.bytes_sent, now_s)

    def _of_fabric(self, now_s: float) -> Mapping[str, Value]:
        if not self.ports:
            return {}
        each = [port.bytes() for port in self.ports]
        return self._traffic("fabric", sum(got for got, _ in each), sum(sent for _, sent in each), now_s)

    def _traffic(self, name: str, received: int, sent: int, now_s: float) -> Mapping[str, Value]:
        return self._rates[name].of({f"{name}_received_bytes": received, f"{name}_sent_bytes": sent}, now_s)


@dataclass(frozen=True)
class CpuUse:
    """Busy fractions, 0 to 1, between two samples. None: unknown."""

    usable: float | None = None  # mean of the CPUs that may be used
    busiest: float | None = None  # the busiest of them
    node: float | None = None  # mean of all CPUs


def cpu_times(text: str | None = None) -> CpuTimes:
    """Return the times in the text of /proc/stat, by default those now. Raises OSError or ValueError."""
    times = {}
    for line in (Path("/proc/stat").read_text() if text is None else text).splitlines():
        if not line.startswith("cpu"):
            break
        name, *fields = line.split()
        if name != "cpu":
            ticks = [int(field) for field in fields[:_TIMES]]
            total = sum(ticks)
            times[int(name[3:])] = total - sum(ticks[index] for index in _IDLE), total
    return times


def cpu_use(before: CpuTimes, now: CpuTimes, usable: Collection[int]) -> CpuUse:
    """Return the use between two samples. A CPU that went offline or came back is left out."""
    fractions: dict[int, float] = {}
    for cpu, (busy, total) in now.items():
        busy_before, total_before = before.get(cpu, (0, total))
        if total > total_before:
            # The kernel may set iowait back by a tick, which makes busy time appear.
            fractions[cpu] = min(1.0, max(0.0, (busy - busy_before) / (total - total_before)))
    here = [fraction for cpu, fraction in fractions.items() if cpu in usable]
    return CpuUse(_mean(here), max(here, default=None), _mean(list(fractions.values())))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


@dataclass(frozen=True)
class Port:
    """A port of InfiniBand or Slingshot with counters in files, in this unit."""

    about: Fabric
    received: Path
    sent: Path
    unit_bytes: int

    def bytes(self) -> tuple[int, int]:
        """Return the bytes received and sent. Raises OSError or ValueError."""
        # Slingshot's counters have the time behind an @.
        received, sent = (int(path.read_text().partition("@")[0]) for path in (self.received, self.sent))
        return received * self.unit_bytes, sent * self.unit_bytes


def ports(sys: Path = SYS) -> tuple[list[Port], list[str]]:
    """Return the active ports of InfiniBand and Slingshot that have counters, and notes on those that have not."""
    found, notes = [], []
    for port in (*_infiniband(sys), *_slingshot(sys)):
        try:
            port.bytes()
            found.append(port)
        except (OSError, ValueError) as error:
            notes.append(f"{port.about.name}: its counters cannot be read: {error}")
    return found, notes


def _infiniband(sys: Path) -> list[Port]:
    found = []
    for port in sorted((sys / "class/infiniband").glob("*/ports/*")):
        if "ACTIVE" in (file_text(port / "state") or ""):
            rate = re.match(r"([\d.]+) Gb/sec", file_text(port / "rate") or "")  # 200 Gb/sec (4X HDR)
            bits_per_s = round(float(rate[1]) * 1e9) if rate else None
            fabric = Fabric(name=f"{port.parents[1].name}/{port.name}", bits_per_s=bits_per_s)
            received, sent = port / "counters/port_rcv_data", port / "counters/port_xmit_data"
            found.append(Port(fabric, received, sent, unit_bytes=_INFINIBAND_WORD))
    return found


def _slingshot(sys: Path) -> list[Port]:
    """Cassini's counters, as HPE's documentation of the Slingshot NIC and public tools name them."""
    found = []
    for device in sorted((sys / "class/cxi").glob("cxi*")):
        telemetry = device / "device/telemetry"
        speeds = [(file_text(path) or "").strip() for path in sorted((device / "device/net").glob("*/speed"))]
        mbit = next((int(speed) for speed in speeds if speed.isdigit()), None)
        fabric = Fabric(name=device.name, bits_per_s=None if mbit is None else mbit * 1_000_000)
        received, sent = telemetry / "hni_sts_rx_ok_octets", telemetry / "hni_sts_tx_ok_octets"
        found.append(Port(fabric, received, sent, unit_bytes=1))
    return found
