"""What the monitor of a node leaves: the columns of its samples (nodes/node<k>.csv), what they are of, and the last.

An unknown value is empty. A rate is over the time since the sample before it. Columns of what a node does not have are
absent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from ddp_ladder.common.files import opened
from ddp_ladder.common.model import Count, Model, Name, Several
from ddp_ladder.plan.plan import RawFile
from ddp_ladder.platform.accelerators import MonitoredGpu

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
