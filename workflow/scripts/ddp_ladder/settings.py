"""Settings: config.yaml (the experiment) and cluster.yaml (the site) as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Mode = Literal["weak", "strong"]
Launcher = Literal["torchrun", "srun"]
Backend = Literal["auto", "nccl", "gloo"]
Device = Literal["cuda", "cpu"]
LearningRateRule = Literal["linear", "sqrt", "none"]

STAGES = ("stage1", "stage2", "stage3")


@dataclass(frozen=True, order=True)
class Scale:
    """A shape, nodes x GPUs per node, written ``2x4``."""

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
    """The training script and its arguments; anyone's script, unmodified."""

    script: str  # path to a file, or "-m package.module"
    args: tuple[str, ...]
    batch_per_gpu: int
    lr: float | None
    lr_rule: LearningRateRule
    seed: int
    data_dir: str | None
    prepare: tuple[str, ...] | None  # script and arguments that write data_dir once, in one process
    env: Mapping[str, str]


@dataclass(frozen=True)
class Measure:
    """How long a run is measured. The maxima end a run cleanly and early."""

    warmup_steps: int
    min_steps: int
    max_steps: int | None
    max_seconds: float | None


@dataclass(frozen=True)
class GateThresholds:
    """Performance that a stage must show; None asks for nothing."""

    min_efficiency: float | None = None  # fraction of ideal, 0..1
    min_samples_per_s: float | None = None
    max_data_wait_fraction: float | None = None  # 0..1


@dataclass(frozen=True)
class Stage:
    """One rung: its scales, the time limit of each scale's job (minutes), and its gate's thresholds."""

    name: str
    scales: tuple[Scale, ...]
    runtime_min: int
    gate: GateThresholds


@dataclass(frozen=True)
class Variant:
    """A named set of overrides; None and empty leave the base value."""

    name: str
    launcher: Launcher | None = None
    backend: Backend | None = None
    interface: str | None = None
    args: tuple[str, ...] = ()  # appended to the workload's
    env: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True)
class Experiment:
    """config.yaml."""

    file: Path
    results: str
    workload: Workload
    measure: Measure
    modes: tuple[Mode, ...]
    repeats: int
    stages: tuple[Stage, ...]  # in climbing order, absent ones left out
    variants: tuple[Variant, ...]  # "default" is the one that the gates judge


@dataclass(frozen=True)
class Node:
    """What one node offers."""

    gpus: int
    device: Device
    cpus: int


@dataclass(frozen=True)
class Network:
    """How the processes talk to each other."""

    backend: Backend
    interface: str
    env: Mapping[str, str]


@dataclass(frozen=True)
class Site:
    """cluster.yaml."""

    file: Path
    name: str
    node: Node
    python: str | None  # None: the Python that runs the workflow
    network: Network
    launcher: Launcher


@dataclass(frozen=True)
class Settings:
    """Everything that the user decided, checked."""

    experiment: Experiment
    site: Site
