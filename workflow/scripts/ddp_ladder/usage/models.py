"""What a run used, as its record keeps it. Figures are of the measured training: without warm-up and validation.

A figure is null where no sample has it. Memory and temperature are the highest of the whole run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import Field

from ddp_ladder.common.model import Model, Several

Count = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]
Figure = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, description="0 to 1.")]

FindingKind = Literal[
    "other processes",
    "GPU idle",
    "GPU throttled",
    "GPU power limit",
    "GPU memory full",
    "GPU memory empty",
    "CPUs full",
    "too many threads",
    "memory grows",
    "slow node",
    "network full",
    "NUMA",
    "CPU binding",
]


class UsageFinding(Model):
    """Something wrong with what a run used, in words with numbers, and what to change.

    node and gpu: where, if it is one node, and one GPU of it. everywhere: all nodes, or all GPUs, of the run have it:
    the place is not the cause.
    """

    kind: FindingKind
    what: Name
    node: Name | None
    gpu: Count | None
    next: Name
    everywhere: bool = False


class Energy(Model):
    """Energy by its source: figures of different sources are not comparable, and are never added."""

    source: Literal["NVML counter", "NVML power", "RAPL"] = Field(
        description="NVML power: the integral of its samples, where the GPU has no counter. RAPL: the CPU packages."
    )
    run_j: Figure
    measured_j: Figure | None = Field(description="In the measured training.")


class Rate(Model):
    """Bytes per second: mean of the measured training, and the highest sample in it."""

    mean: Figure
    max: Figure


class GpuUsage(Model):
    """One GPU. rank: the rank that trained on it; null if none did, or it is not known."""

    index: Count
    name: Name
    uuid: Name
    rank: Count | None
    busy_fraction: Fraction | None = Field(description="Share of time in which any kernel ran.")
    memory_used_bytes: Count | None
    memory_bytes: Count | None
    memory_busy_fraction: Fraction | None = Field(description="Share of time in which its memory was read or written.")
    power_w: Figure | None
    power_limit_w: Figure | None
    temperature_c: Figure | None
    sm_clock_mhz: Figure | None = Field(description="Median.")
    max_sm_clock_mhz: Count | None
    throttled: Mapping[str, Fraction] | None = Field(
        description="Share of the samples in which each reason lowered the clock; null: the GPU does not report it."
    )
    sm_active_fraction: Fraction | None
    tensor_active_fraction: Fraction | None
    dram_active_fraction: Fraction | None
    energy: Energy | None


class Memory(Model):
    """Memory of the training's processes on a node, without pages of files and shared memory."""

    first_bytes: Count = Field(description="Median of the first third of the measured training.")
    last_bytes: Count = Field(description="Median of its last third.")
    max_bytes: Count
    growth_bytes_per_s: Figure | None = Field(description="Null unless it grew steadily.")


class NodeUsage(Model):
    """One node. cpus: that the agent may use; cpu_fraction is of these, node_cpu_fraction of all."""

    node_rank: Count
    node: Name
    samples: Count = Field(description="In the measured training.")
    cpus: Count
    cpu_fraction: Fraction | None
    cpu_busiest_fraction: Fraction | None
    node_cpu_fraction: Fraction | None
    training_cpu_cores: Figure | None
    training_processes: Count | None
    training_threads: Count | None
    training_memory: Memory | None
    node_memory_used_bytes: Count | None
    node_memory_bytes: Count
    interface: Name
    network_received_bytes_per_s: Rate | None
    network_sent_bytes_per_s: Rate | None
    interface_bytes_per_s: Figure | None = Field(description="The rate of the link.")
    fabric_received_bytes_per_s: Rate | None
    fabric_sent_bytes_per_s: Rate | None
    fabric_bytes_per_s: Figure | None = Field(description="The rate of all its ports together.")
    disk_read_bytes_per_s: Rate | None
    shm_used_bytes: Count | None
    package_energy: Energy | None
    gpus: Several[GpuUsage]

    @property
    def used_gpus(self) -> tuple[GpuUsage, ...]:
        """Return the GPUs that ranks trained on."""
        return tuple(gpu for gpu in self.gpus if gpu.rank is not None)

    @property
    def cores_of_others(self) -> float | None:
        """Return how many of the run's CPUs were busy with processes that are not the training's."""
        if self.cpu_fraction is None or self.training_cpu_cores is None:
            return None
        return max(0.0, self.cpu_fraction * self.cpus - self.training_cpu_cores)


class Usage(Model):
    """What a run used of its nodes, and what is wrong with it. Several agents on one machine sample it each."""

    nodes: Several[NodeUsage] = Field(description="Those with samples.")
    findings: Several[UsageFinding]
    notes: Several[str] = Field(description="Which nodes have no samples, and what they lack, and why.")

    @property
    def gpus(self) -> tuple[GpuUsage, ...]:
        """Return the GPUs of all nodes that ranks trained on."""
        return tuple(gpu for node in self.nodes for gpu in node.used_gpus)

    @property
    def gpu_busy_fraction(self) -> float | None:
        """Return the mean over the GPUs."""
        return _mean(gpu.busy_fraction for gpu in self.gpus)

    @property
    def gpu_power_w(self) -> float | None:
        """Return the mean of one GPU."""
        return _mean(gpu.power_w for gpu in self.gpus)

    @property
    def cpu_fraction(self) -> float | None:
        """Return the mean over the nodes."""
        return _mean(node.cpu_fraction for node in self.nodes)

    @property
    def gpu_energy_measured_j(self) -> float | None:
        """Return the energy of the GPUs that were used, in the measured training; None if one is not known."""
        return _sum(gpu.energy.measured_j if gpu.energy else None for gpu in self.gpus)

    @property
    def gpu_energy_run_j(self) -> float | None:
        """Return the energy of the GPUs that were used, in the whole run; None if one is not known."""
        return _sum(gpu.energy.run_j if gpu.energy else None for gpu in self.gpus)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum; None if one is not known, or there are none."""
    every = [*values]
    known = [value for value in every if value is not None]
    return sum(known) if known and len(known) == len(every) else None
