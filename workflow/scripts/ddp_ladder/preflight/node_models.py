"""What the preflight finds on a node and between nodes: the raw facts, without a judgement.

Null means that the fact could not be read, or that the question does not arise on this node.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ddp_ladder.common.model import Model, Several

NO_TORCH = "cannot import torch"  # in the error of SoftwareFacts


class GpuFacts(Model):
    """A GPU, as ``nvidia-smi -q -x`` describes it."""

    index: int
    uuid: str
    name: str
    visible: bool = Field(description="CUDA_VISIBLE_DEVICES leaves it to this job step.")
    memory_total_mib: int | None
    memory_used_mib: int | None
    processes: Several[str] = Field(description="Processes that use it: id and name.")
    uncorrectable_errors: int | None = Field(description="ECC, since the driver was loaded.")
    retired_pages_pending: bool | None
    remapping_pending: bool | None
    remapping_failed: bool | None
    recovery_action: str | None = Field(description="What the driver asks for after an error: None, Reset, Reboot, ...")
    slowed_by: Several[str] = Field(description="Throttle reasons that are active though the GPU is idle.")


class GpusFacts(Model):
    """The GPUs of a node. error: why nvidia-smi gave no answer; null with an empty list: there is no nvidia-smi."""

    driver: str | None
    gpus: Several[GpuFacts]
    visible_devices: str | None = Field(description="CUDA_VISIBLE_DEVICES of the job step.")
    error: str | None

    @property
    def visible(self) -> tuple[GpuFacts, ...]:
        return tuple(gpu for gpu in self.gpus if gpu.visible)


class InterfaceFacts(Model):
    """The network interface that this node uses. name: null if none was found, and error says why."""

    name: str | None
    address: str | None
    exists: bool
    up: bool | None
    mtu: int | None
    speed_mbit_per_s: int | None
    others: Several[str] = Field(description="The node's other interfaces that have an IPv4 address.")
    error: str | None


class DirectoryFacts(Model):
    """A directory that runs write to. error: why a file of 1 MB could not be written there."""

    path: str
    free_bytes: int | None
    total_bytes: int | None
    free_inodes: int | None = Field(description="Null where the file system has no fixed number.")
    error: str | None


class PortFacts(Model):
    """The rendezvous port, on the head only. holder: the process that has it, if it may be seen."""

    port: int
    free: bool
    holder: str | None
    error: str | None


class SoftwareFacts(Model):
    """The site's Python, started as a run starts it. error: which key is wrong, and why."""

    python: str | None
    executable: str | None
    torch: str | None
    cuda: str | None
    nccl: str | None
    gpus: int | None = Field(description="GPUs that torch counts.")
    error: str | None


class Leftover(Model):
    """A process of an earlier run of the ladder that nobody started any more: its parent is gone."""

    pid: int
    command: str
    run: str | None


class NodeFacts(Model):
    """What one node has. unanswered: questions that had no answer in time; their facts are null."""

    schema_version: Annotated[int, Field(ge=1, le=1)]
    node: str
    host: str
    node_rank: int
    took_s: float
    time_limit_s: float
    in_slurm: bool
    cpus: Several[int] | None
    gpus: GpusFacts | None
    interface: InterfaceFacts | None
    shared_memory: DirectoryFacts | None
    run_directory: DirectoryFacts | None
    marker_seen: bool | None = Field(description="The head's file in the shared directory is there; null: not asked.")
    port: PortFacts | None
    software: SoftwareFacts | None
    host_addresses: Several[str] | None = Field(description="What the host name resolves to; empty if it does not.")
    leftovers: Several[Leftover] | None
    locked_memory_bytes: int | None = Field(description="ulimit -l; null: unlimited.")
    open_files: int | None = Field(
        description="ulimit -n of the ranks, which is ulimit -Hn, at most 65536; null: unlimited."
    )
    unanswered: Several[str]


class NameFacts(Model):
    """What a node's name resolves to here; error if it does not."""

    name: str
    addresses: Several[str]
    error: str | None


class LinkFacts(Model):
    """A connection to another node over the chosen interface.

    connected: the other side answered with this job's token. payload_s: time in which a payload larger than any MTU
    went there and back; null with connected true: it did not arrive.
    """

    peer: str
    address: str
    connected: bool
    payload_s: float | None
    error: str | None


class ClockFacts(Model):
    """This node's clock minus the head's, from the fastest of several round trips."""

    offset_s: float
    uncertainty_s: float


class MeshFacts(Model):
    """What one node saw of the others. missing: nodes that did not come, as the head reports them."""

    schema_version: Annotated[int, Field(ge=1, le=1)]
    node: str
    node_rank: int
    took_s: float
    time_limit_s: float
    address: str | None
    head: str = Field(description="address:port of the head")
    met: bool = Field(description="This node met the head, and got the addresses of the others.")
    error: str | None = Field(description="Why it did not.")
    names: Several[NameFacts]
    missing: Several[str]
    foreign: Several[str] = Field(description="Who connected to this node's ports without the job's token.")
    links: Several[LinkFacts]
    clock: ClockFacts | None
