"""The settings as the program uses them: the keys of both files, checked and put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ddp_ladder.settings.cluster_keys import Network, Node, Slurm, Software
from ddp_ladder.settings.config_keys import (
    GateThresholds,
    Hang,
    Logs,
    Measure,
    MonitorKeys,
    PreflightKeys,
    RepeatsKeys,
    ReportKeys,
    Workload,
)
from ddp_ladder.settings.terms import Backend, Launcher, Mode, Scale


@dataclass(frozen=True)
class Stage:
    """One rung: its scales, the time limit of each scale's job (minutes), its gate's thresholds, its Slurm values."""

    name: str
    scales: tuple[Scale, ...]
    runtime_min: int
    gate: GateThresholds
    slurm: Slurm


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
    repeats: RepeatsKeys  # in each job
    stages: tuple[Stage, ...]  # in climbing order, absent ones left out
    variants: tuple[Variant, ...]  # the gates judge "default"
    hang: Hang = field(default_factory=Hang)
    jobs: int = 1  # of each scale
    may_differ: tuple[str, ...] = ()  # fingerprint fields that may differ between compared runs
    preflight: PreflightKeys = field(default_factory=PreflightKeys)
    logs: Logs = field(default_factory=Logs)
    monitor: MonitorKeys = field(default_factory=MonitorKeys)
    report: ReportKeys = field(default_factory=ReportKeys)

    @property
    def first_scale(self) -> Scale:
        """Return the scale of stage 1, the baseline of every efficiency."""
        return self.stages[0].scales[0]


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
