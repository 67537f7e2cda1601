"""Settings: config.yaml (the experiment) and cluster.yaml (the site) as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

Mode = Literal["weak", "strong"]
Launcher = Literal["torchrun", "srun", "python"]  # python: the script alone, one process
Backend = Literal["auto", "nccl", "gloo"]
Device = Literal["cuda", "cpu"]
LearningRateRule = Literal["linear", "sqrt", "none"]
Engine = Literal["apptainer", "singularity"]
Interface = str | Mapping[str, str]  # "auto", a name, or a name for each node

STAGES = ("stage1", "stage2", "stage3")
REFERENCE_VARIANT = "default"
PLAIN_VARIANT = "plain"
"""The default variant's script at 1x1 without a launcher: the baseline for the cost of DDP itself."""
WARMUP_STEPS: Mapping[Device, int] = {"cuda": 20, "cpu": 10}
"""A GPU needs more steps: clocks rise, memory and kernel caches fill."""


@dataclass(frozen=True, order=True)
class Scale:
    """A scale, nodes x GPUs per node, written ``2x4``."""

    nodes: int
    gpus_per_node: int

    @property
    def world_size(self) -> int:
        return self.nodes * self.gpus_per_node

    @classmethod
    def parse(cls, text: str) -> Scale:
        """Read ``2x4``. Raises ValueError for anything else."""
        nodes, gpus = text.split("x")
        return cls(int(nodes), int(gpus))

    def __str__(self) -> str:
        return f"{self.nodes}x{self.gpus_per_node}"


@dataclass(frozen=True)
class Workload:
    """The training script, unmodified, and its arguments."""

    script: str  # path to a file, or "-m package.module"
    args: tuple[str, ...]
    batch_per_gpu: int
    lr: float | None
    lr_rule: LearningRateRule
    seed: int
    data_dir: str | None
    prepare: tuple[str, ...] | None  # script and arguments that write data_dir once, in one process
    env: Mapping[str, str]
    directory: str | None = None  # working directory, with placeholders; None: where Snakemake was started
    # Of one process, for loops without a DataLoader: a product or quotient, with placeholders.
    samples_per_step: str | None = None
    throughput_regex: str | None = None  # for programs that cannot be instrumented; its group is samples per second


@dataclass(frozen=True)
class Measure:
    """Length of a measurement. The maxima end a run cleanly and early."""

    warmup_steps: int | None  # None: what the site's device needs
    min_steps: int
    max_steps: int | None
    max_seconds: float | None
    plain_baseline: bool = True  # stage1 also measures the script with no launcher and no process group

    def warmup_steps_on(self, device: Device) -> int:
        """Return the least number of first steps that every run leaves out."""
        return WARMUP_STEPS[device] if self.warmup_steps is None else self.warmup_steps


@dataclass(frozen=True)
class GateThresholds:
    """Performance that a stage must show; None sets no threshold."""

    min_efficiency: float | None = None  # fraction of ideal, 0..1
    min_samples_per_s: float | None = None
    max_data_wait_fraction: float | None = None  # 0..1
    max_efficiency: float = 1.05  # an interval wholly above it closes the gate: the baseline is wrong
    certain: bool = False  # judge the interval's lower end, not the estimate; for the data wait, every repeat


@dataclass(frozen=True)
class Slurm:
    """Options of sbatch besides the size of a job; None leaves one to Slurm."""

    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    nodelist: str | None = None
    exclude: str | None = None
    extra: tuple[str, ...] = ()  # further options, one each: --exclusive

    def overridden(self, other: Slurm) -> Slurm:
        """Return these values with those of ``other`` on top; its extra options are appended."""
        given = {name: value for name, value in vars(other).items() if value is not None}
        return replace(self, **{**given, "extra": self.extra + other.extra})


@dataclass(frozen=True)
class Stage:
    """One rung: its scales, the time limit of each scale's job (minutes), its gate's thresholds, its Slurm values."""

    name: str
    scales: tuple[Scale, ...]
    runtime_min: int
    gate: GateThresholds
    slurm: Slurm = Slurm()


@dataclass(frozen=True)
class Variant:
    """A named set of overrides; None and empty keep the base value."""

    name: str
    launcher: Launcher | None = None
    backend: Backend | None = None
    interface: str | None = None
    args: tuple[str, ...] = ()  # appended to the workload's
    env: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True)
class Experiment:
    """The contents of config.yaml."""

    file: Path
    results: str
    workload: Workload
    measure: Measure
    modes: tuple[Mode, ...]
    repeats: int
    stages: tuple[Stage, ...]  # in climbing order, absent ones left out
    variants: tuple[Variant, ...]  # the gates judge "default"
    may_differ: tuple[str, ...] = ()  # fingerprint fields that may differ between compared runs


@dataclass(frozen=True)
class Node:
    """Resources of one node; a job gets the share of its GPUs."""

    gpus: int
    device: Device
    cpus: int
    gres: str | None = None  # name of a GPU in Slurm, "gpu" or "gpu:a100"; None requests none
    memory_mb: int | None = None
    driver: str | None = None  # of NVIDIA, as nvidia-smi shows it; only the doctor uses it


@dataclass(frozen=True)
class Container:
    """The image that the training runs in."""

    image: str
    engine: Engine = "apptainer"
    binds: tuple[str, ...] = ()
    args: tuple[str, ...] = ()  # further options of ``apptainer exec``


@dataclass(frozen=True)
class Software:
    """Software of the training. Modules and setup run on the node; Python is in the container if there is one."""

    python: str | None = None  # None: the Python that runs the workflow
    modules: tuple[str, ...] = ()
    setup: str = ""  # shell code
    container: Container | None = None


@dataclass(frozen=True)
class Network:
    """Network settings of the training processes."""

    backend: Backend
    interface: Interface
    env: Mapping[str, str]


def interface_on(interface: Interface, node: str) -> str:
    """Return the interface of one node; ``auto`` if a map leaves the node out."""
    return interface if isinstance(interface, str) else interface.get(node, "auto")


@dataclass(frozen=True)
class Site:
    """The contents of cluster.yaml."""

    file: Path
    name: str
    slurm: Slurm
    node: Node
    software: Software
    network: Network
    launcher: Launcher


@dataclass(frozen=True)
class Settings:
    """All settings of the user, checked."""

    experiment: Experiment
    site: Site


def batches(batch_per_gpu: int, mode: str, world_size: int) -> tuple[int, int]:
    """Return (batch per GPU, global batch): weak mode keeps the first as at 1x1, strong mode the second."""
    if mode == "weak":
        return batch_per_gpu, batch_per_gpu * world_size
    return batch_per_gpu // world_size, batch_per_gpu
