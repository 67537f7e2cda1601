"""The models of what the monitor of a node leaves: the description of its samples, and its part of the agent's end."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ddp_ladder.common.model import Model, Several
from ddp_ladder.plan.raw_file import RawFile

Count = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]


class MonitoredGpu(Model):
    """A GPU that the run may use. Null: the driver does not report it."""

    index: Count = Field(description="The i of the columns gpu<i>_...: its place among the GPUs that the run may use.")
    name: Name
    uuid: Name
    bus_id: str | None
    memory_bytes: Count | None
    power_limit_w: float | None = Field(description="The limit that is enforced now.")
    power_limit_max_w: float | None = Field(description="The highest limit that can be set.")
    slowdown_temperature_c: int | None
    max_sm_clock_mhz: Count | None
    numa_node: Count | None
    numa_cpus: Several[Count] | None = Field(description="The CPUs near it.")


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
    cpus_of_node: Count
    memory_bytes: Count = Field(description="Of the node.")
    fabrics: Several[Fabric]
    gpus: Several[MonitoredGpu]
    notes: Several[str] = Field(description="What cannot be sampled, and why.")


class MonitorEnd(Model):
    """The monitor's part of an agent's end record."""

    samples: Count
    cpu_s: float = Field(ge=0, description="CPU seconds that the sampling took.")
    error: Name | None = Field(None, description="Why samples are missing.")
