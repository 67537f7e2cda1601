"""One sample of a node: a value for each column."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from ddp_ladder.monitor import cpus, links, memory
from ddp_ladder.monitor.columns import columns
from ddp_ladder.monitor.energy import Packages
from ddp_ladder.monitor.gpus import GpuColumns, Gpus, Value
from ddp_ladder.monitor.processes import TrainingProcesses
from ddp_ladder.monitor.rates import SHORTEST_S, Rates


class NodeSampler:
    """Reads the counters of a node, and keeps the last ones for the rates.

    errors: by what was read, why values are missing.
    """

    def __init__(self, interface: str, gpus: Gpus, siblings: bool) -> None:
        """siblings: the run has several agents on this node."""
        self.interface, self.gpus = interface, gpus
        self.interface_bits_per_s = links.interface_bits_per_s(interface)
        self.ports, notes = links.ports()
        self._packages = Packages()
        self._columns_of_gpus = GpuColumns(gpus.each)
        self._training = TrainingProcesses(os.getpid(), siblings)
        self.cpus: frozenset[int] = frozenset()  # that the agents may use
        self._times: cpus.CpuTimes = {}
        self._rates: dict[str, Rates] = {}
        self._last_s: float | None = None
        self.header = columns(bool(self.ports), self._packages.readable, len(gpus.each))
        self.notes = [*gpus.notes, *notes, *([self._packages.note] if self._packages.note else [])]
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
            "RAPL": self._of_packages,
            "GPUs": self._columns_of_gpus.sample,
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
        return [*(f"{name}: {why}" for name, why in self._errors.items()), *self._columns_of_gpus.errors]

    def _find_cpus(self) -> None:
        """Find the CPUs of all agents: Slurm gives each task its own."""
        found: set[int] = set()
        for pid in self._training.agents:
            try:
                found |= os.sched_getaffinity(pid)
            except OSError:  # it has ended
                continue
        self.cpus |= found

    def _of_training(self, now_s: float) -> Mapping[str, Value]:
        agents = self._training.agents
        training = self._training.sample()
        if self._training.agents != agents:
            self._find_cpus()
        elapsed_s = 0.0 if self._last_s is None else now_s - self._last_s
        known = elapsed_s >= SHORTEST_S
        read = training.read_bytes
        return {
            "training_cpu_cores": training.cpu_s / elapsed_s if known else None,
            "training_rss_bytes": training.rss_bytes,
            "training_private_bytes": training.private_bytes,
            "training_processes": training.processes,
            "training_threads": training.threads,
            "disk_read_bytes_per_s": read / elapsed_s if known and read is not None else None,
        }

    def _of_cpus(self, now_s: float) -> Mapping[str, Value]:
        times = cpus.read_times()
        enough = self._last_s is not None and now_s - self._last_s >= SHORTEST_S
        use = cpus.use(self._times, times, self.cpus) if enough else cpus.CpuUse()
        self._times = times
        return {
            "cpu_fraction": use.usable,
            "cpu_busiest_fraction": use.busiest,
            "node_cpu_fraction": use.node,
            "load_1min": os.getloadavg()[0],
        }

    def _of_memory(self, _now_s: float) -> Mapping[str, Value]:
        return {"node_memory_used_bytes": memory.used_bytes(), "shm_used_bytes": memory.shm_used_bytes()}

    def _of_network(self, now_s: float) -> Mapping[str, Value]:
        return self._traffic("network", links.interface_bytes(self.interface), now_s)

    def _of_fabric(self, now_s: float) -> Mapping[str, Value]:
        return self._traffic("fabric", links.fabric_bytes(self.ports), now_s) if self.ports else {}

    def _of_packages(self, _now_s: float) -> Mapping[str, Value]:
        return {"package_energy_j": self._packages.used_j()} if self._packages.readable else {}

    def _traffic(self, name: str, counters: tuple[int, int], now_s: float) -> Mapping[str, Value]:
        received, sent = counters
        rates = self._rates.setdefault(name, Rates())
        return rates.of(
            {f"{name}_received_bytes_per_s": received, f"{name}_sent_bytes_per_s": sent},
            now_s,
        )
