"""The keys of cluster.yaml: types, bounds, defaults and meanings."""

# Without `from __future__ import annotations`: pydantic would evaluate each text, 20 ms in every start.

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag

from ddp_ladder.settings.key_types import Environment, Items, Name, NullIs, Section, Text
from ddp_ladder.settings.terms import MOST_GPUS, Backend, Device, Engine, Transport

_SHELL = "(it reaches sbatch through a shell)"
_Name = Annotated[
    str, Text(f"a name of letters, digits and . _ @ + - {_SHELL}", "^[A-Za-z0-9_][A-Za-z0-9._@+-]*$", 200)
]
_Names = Annotated[
    str,
    Text(
        f"names of letters, digits and . _ + - with commas between them {_SHELL}",
        "^[A-Za-z0-9_][A-Za-z0-9._+,-]*$",
        200,
    ),
]
_Features = Annotated[
    str,
    Text(
        f"features of letters, digits and . _ + - = : joined by & | , * ( ) [ ] {_SHELL}",
        r"^[A-Za-z0-9_(\[][A-Za-z0-9._+=:&|,*()\[\]-]*$",
        1000,
    ),
]
_Nodes = Annotated[
    str,
    Text(
        f"node names such as node01,node[03-05], of letters, digits and . _ - , [ ] {_SHELL}",
        r"^[A-Za-z0-9][A-Za-z0-9._,\[\]-]*$",
        100_000,
    ),
]
_Option = Annotated[str, Text(least=1, most=10_000), Field(description="One option.", examples=["--exclusive"])]
_Driver = Annotated[
    str,
    Text('what nvidia-smi shows on a compute node, in quotes, such as "535.129.03"', r"^[0-9]{3}(\.[0-9]{1,3}){0,2}$"),
]
_Module = Annotated[
    str,
    Text("a module's name, such as PyTorch/2.8.0", "^[A-Za-z0-9_./][A-Za-z0-9_.,:@=+/-]*$", 1000),
    Field(description="A module's name.", examples=["PyTorch/2.8.0"]),
]
InterfaceName = Annotated[
    str, Text("an interface's name such as eth0 or ib0, or auto", "^[A-Za-z0-9][A-Za-z0-9._:,@-]*$", 100)
]
_OneOfNode = Annotated[InterfaceName, Field(description="Interface of one node.", examples=["eth0"])]
_Interface = Annotated[
    Annotated[InterfaceName, Tag("of all nodes")]
    | Annotated[dict[str, _OneOfNode], Field(min_length=1, max_length=10_000), Tag("of each node")],
    Discriminator(lambda value: "of each node" if isinstance(value, dict) else "of all nodes"),
]


class Slurm(Section):
    """Options of sbatch other than nodes, GPUs, CPUs, memory and time; null leaves one to Slurm."""

    account: _Name | None = Field(default=None, examples=["my-project"])
    """Account to charge."""
    partition: _Names | None = Field(default=None, examples=["gpu"])
    """Partition, or several separated by commas."""
    qos: _Names | None = Field(default=None, examples=["debug"])
    """Quality of service."""
    constraint: _Features | None = Field(default=None, examples=["a100"])
    """Features that the nodes must have."""
    reservation: _Names | None = Field(default=None, examples=["course"])
    """Reservation."""
    nodelist: _Nodes | None = Field(default=None, examples=["node[01-04]"])
    """Nodes that a job must have."""
    exclude: _Nodes | None = Field(default=None, examples=["node07"])
    """Nodes that a job must not have."""
    extra: Items[_Option] = Field(default=(), examples=[["--exclusive"]])
    """Further options of sbatch, one list item each, such as --exclusive or --signal=TERM@120."""

    def overridden(self, other: Self) -> Self:
        """Return these values with those of ``other`` on top; its extra options are appended."""
        given = {name: value for name, value in other if value is not None}
        return self.replace(**{**given, "extra": self.extra + other.extra})


class Node(Section):
    """Resources of one node; a scale that uses some of its GPUs requests their share of cores and memory."""

    gpus: int = Field(ge=1, le=MOST_GPUS, examples=[4])
    """GPUs per node. With device cpu, a "GPU" is one CPU process."""
    device: Device
    """cuda for NVIDIA and AMD GPUs; cpu without GPUs (the backend is then Gloo)."""
    cpus: int = Field(ge=1, le=4096, examples=[64])
    """CPU cores per node, shared by its GPUs' processes."""
    gres: Annotated[str, Text("gpu, or gpu:type such as gpu:a100", "^[A-Za-z0-9][A-Za-z0-9._:-]*$", 100)] | None = (
        Field(default=None, examples=["gpu"])
    )
    """Name of a GPU in Slurm; the scale adds the number. Null requests no GPU."""
    memory_mb: int | None = Field(default=None, ge=1, le=10**9, examples=[256_000])
    """Memory per node in MB, as in --mem (1024 MB are 1 GB); null is the partition's default."""
    driver: _Driver | None = Field(default=None, examples=["535.129.03"])
    """NVIDIA driver of the compute nodes; the doctor compares it with torch's CUDA version."""

    @property
    def threads_per_rank(self) -> int:
        """Cores of one process: the same at every scale, so that the baseline does not win by using idle cores."""
        return max(1, self.cpus // self.gpus)


class Container(Section):
    """The image that the training runs in."""

    image: Annotated[str, Text(least=1, most=10_000, path=True)] = Field(examples=["/images/pytorch.sif"])
    """File or URI of the image, as the engine takes it."""
    engine: Engine = "apptainer"
    """Program that runs the image."""
    binds: Items[Annotated[str, Text(least=1, most=10_000, path=True), Field(examples=["/data"])]] = Field(
        default=(), examples=[["/data"]]
    )
    """Directories to mount inside, as for --bind; each source or source:target."""
    args: Items[Annotated[str, Text(most=10_000, number=True), Field(examples=["--no-home"])]] = Field(
        default=(), examples=[["--no-home"]]
    )
    """Further options of the engine's exec."""


class Software(Section):
    """Software of the training. Modules and setup run on the node; Python is in the container if there is one."""

    python: Annotated[str, Text(least=1, most=1000, path=True)] | None = Field(
        default=None, examples=["/opt/venv/bin/python"]
    )
    """Python that has the workload's packages; null for the Python that runs the workflow."""
    modules: Items[_Module] = Field(default=(), examples=[["PyTorch/2.8.0"]])
    """Environment modules, loaded on each node in this order, outside any container."""
    setup: Annotated[str, Text(most=100_000, lines=True)] = Field(
        default="", examples=["source /opt/venv/bin/activate"]
    )
    """Shell commands that each node runs after loading the modules; exported variables reach the training."""
    container: Container | None = Field(default=None, examples=[{"image": "/images/pytorch.sif"}])
    """Image that the training runs in; null for none."""


class Network(Section):
    """Communication between the processes."""

    backend: Backend = "auto"
    """Backend of torch.distributed. auto is nccl with device cuda and gloo with device cpu."""
    interface: _Interface = Field(
        default="auto",
        examples=["ib0", {"node01": "eth0", "node02": "eth1"}],
        json_schema_extra={
            "patternErrorMessage": "an interface's name such as eth0 or ib0, auto, or a map from node names to these"
        },
    )
    """Network interface of NCCL and Gloo; auto detects it, a map sets it per node."""
    transport: Transport = "any"
    """What NCCL must use between nodes; the preflight compares it with NCCL's log. ib is InfiniBand or RoCE, ofi a
    plugin for libfabric (Slingshot, EFA), socket is TCP; any takes all."""
    env: Environment = Field(default_factory=dict, examples=[{"NCCL_DEBUG": "INFO"}])
    """Environment variables that the site's network needs; values may contain placeholders."""


class ClusterKeys(Section, title="The site"):
    """A cluster, or this machine."""

    site: Name = Field(examples=["local"])
    """Name of the site, for the report."""
    slurm: Annotated[Slurm, NullIs({})] = Field(default_factory=Slurm, examples=[{"partition": "gpu"}])
    node: Node = Field(examples=[{"gpus": 4, "device": "cuda", "cpus": 64}])
    software: Annotated[Software, NullIs({})] = Field(default_factory=Software)
    network: Annotated[Network, NullIs({})] = Field(
        default_factory=Network, examples=[{"backend": "auto", "interface": "auto"}]
    )
    launcher: Literal["torchrun", "srun"] = "torchrun"
    """torchrun starts one agent per node, srun starts one process per GPU."""
