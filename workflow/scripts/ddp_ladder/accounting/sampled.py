"""What the monitor's samples of a run add up to: energy by source, busy GPU time, processor time and memory. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np

from ddp_ladder.usage.models import Energy, Usage
from ddp_ladder.usage.samples import NodeSamples


@dataclass(frozen=True)
class Sums:
    """Sums over the nodes of a run. None: not sampled. ``measured``: in the measured training alone."""

    nvml_j: float | None = None
    nvml_measured_j: float | None = None
    rapl_j: float | None = None
    rapl_measured_j: float | None = None
    busy_gpu_s: float | None = None  # busy fraction x time in training
    cpu_s: float | None = None
    cpu_cores_most: float | None = None  # on one node, between two samples
    memory_bytes_most: float | None = None  # on one node; pages that processes share count in each, as for Slurm


def sums_of(usage: Usage | None, nodes: Collection[NodeSamples], training_s: float) -> Sums:
    """Return the sums of a run; nothing is known if it was not sampled."""
    if usage is None or not usage.nodes:
        return Sums()
    packages = {node.node: node.package_energy for node in usage.nodes}.values()  # simulated nodes are one machine
    busy = [gpu.busy_fraction for gpu in usage.gpus]
    return Sums(
        nvml_j=usage.gpu_energy_run_j,
        nvml_measured_j=usage.gpu_energy_measured_j,
        rapl_j=_energy(packages, lambda energy: energy.run_j),
        rapl_measured_j=_energy(packages, lambda energy: energy.measured_j),
        busy_gpu_s=None if (share := total(busy)) is None else share * training_s,
        cpu_s=total(_integral(each) for each in nodes),
        cpu_cores_most=_most("training_cpu_cores", nodes),
        memory_bytes_most=_most("training_rss_bytes", nodes),
    )


def _energy(packages: Iterable[Energy | None], read: Callable[[Energy], float | None]) -> float | None:
    return total(read(energy) if energy else None for energy in packages)


def _most(name: str, nodes: Iterable[NodeSamples]) -> float | None:
    """Return the highest sample of all nodes."""
    known = [column for each in nodes if not np.isnan(column := each.column(name)).all()]
    return max((float(np.nanmax(column)) for column in known), default=None)


def _integral(samples: NodeSamples) -> float | None:
    """Return the CPU time of the training's processes on a node. A rate is over the interval before its sample."""
    cores = samples.column("training_cpu_cores")
    return None if np.isnan(cores).all() else float(np.nansum(cores * (samples.times_s - samples.begins_s)))


def total(parts: Iterable[float | None]) -> float | None:
    """Return the sum; None if a part is unknown: a sum without it would look like less use."""
    every = [*parts]
    known = [part for part in every if part is not None]
    return sum(known) if known and len(known) == len(every) else None
