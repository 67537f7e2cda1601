"""machine.json: what a node of a scale's job is made of, and to which CPUs its ranks were bound.

Lists of CPUs and of NUMA nodes are as Linux writes them: ``0-3,8``. Null: it could not be read; notes say why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from ddp_ladder.common.model import Model, Several, Version1

Count = Annotated[int, Field(ge=0)]


class Cpu(Model):
    """The processors, from lscpu. cpus: logical ones, of the whole node."""

    model: str | None
    architecture: str | None
    sockets: Count | None
    cores_per_socket: Count | None
    threads_per_core: Count | None
    cpus: Count | None


class NumaFacts(Model):
    """A NUMA node. cpus: empty for one with memory alone, such as a GPU's on a Grace Hopper."""

    number: Count
    cpus: str
    memory_bytes: Count | None


class Cpuset(Model):
    """CPUs and NUMA nodes that the agent's control group has, and those that the agent itself may use.

    The second are fewer where srun binds tasks (--cpu-bind) or taskset was used.
    """

    cgroup: str | None = Field(description="Path of the control group with the cpuset.")
    cpus: str | None
    memory_nodes: str | None
    allowed_cpus: str | None = Field(description="Cpus_allowed_list of the agent.")
    allowed_memory_nodes: str | None = Field(description="Mems_allowed_list of the agent.")


class NetworkInterface(Model):
    """The interface that the runs use."""

    name: str
    address: str | None
    speed_mbit_per_s: Count | None
    mtu: Count | None


class MachineGpu(Model):
    """A GPU of the node, from ``nvidia-smi -q`` and ``nvidia-smi topo -m``, its NUMA node from /sys."""

    index: Count
    name: str | None
    uuid: str | None
    bus_id: str
    visible: bool = Field(description="CUDA_VISIBLE_DEVICES leaves it to the job step.")
    memory_bytes: Count | None
    power_limit_w: float | None
    power_limit_max_w: float | None
    max_sm_clock_mhz: Count | None
    pcie_generation: Count | None = Field(description="Highest of this GPU in this slot.")
    pcie_width: Count | None = Field(description="Lanes, highest of this GPU in this slot.")
    persistence_mode: str | None
    compute_mode: str | None
    ecc_mode: str | None
    mig_mode: str | None
    numa_node: Count | None
    numa_cpus: str | None = Field(description="CPUs of that NUMA node.")
    links: Mapping[str, str] = Field(description="To other GPUs and network adapters: NV4, PIX, SYS, ...")


class Bound(Model):
    """How many threads of a rank are bound to the same CPUs."""

    cpus: str
    threads: Count


class RankAffinity(Model):
    """The CPUs of a rank's process: main thread, and all threads by where they may run."""

    rank: Count
    node_rank: Count
    pid: Count
    steps: Count = Field(description="That the rank had made when its threads were looked at.")
    cpus: str = Field(description="Of the main thread.")
    memory_nodes: str | None
    bound: Several[Bound]

    @property
    def threads(self) -> int:
        return sum(each.threads for each in self.bound)


class Machine(Model):
    """One node of a scale's job (results/machine/<scale>/<node>/machine.json), written once per job."""

    schema_version: Version1
    job_id: str
    scale: str
    node: str
    host: str
    taken_at_s: float
    kernel: str
    os: str | None
    cpu: Cpu | None
    memory_bytes: Count | None
    numa_nodes: Several[NumaFacts]
    cpuset: Cpuset
    interface: NetworkInterface
    driver: str | None
    cuda: str | None = Field(description="Newest CUDA that the driver supports.")
    gpus: Several[MachineGpu]
    affinity_of: str | None = Field(default=None, description="The run whose ranks were looked at.")
    ranks: Several[RankAffinity] = ()
    notes: Several[str] = ()
