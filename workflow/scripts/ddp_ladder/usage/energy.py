"""Energy of a device, from a counter or from samples of its power. Pure."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from ddp_ladder.usage.figures import rounded
from ddp_ladder.usage.models import Energy
from ddp_ladder.usage.samples import GpuSamples, NodeSamples, Values
from ddp_ladder.usage.timeline import Timeline

Source = Literal["NVML counter", "NVML power", "RAPL"]


def gpu_energy(gpu: GpuSamples, times_s: Values, timeline: Timeline) -> Energy | None:
    """Return the energy of a GPU; None if neither its counter nor its power was sampled."""
    counter = gpu.column("energy_j")
    if _known(counter) >= 2:
        return _energy("NVML counter", counter, times_s, timeline)
    power_w = gpu.column("power_w")
    if _known(power_w) < 2:
        return None
    known = ~np.isnan(power_w)
    times_s, power_w = times_s[known], power_w[known]
    between = np.diff(times_s) * (power_w[1:] + power_w[:-1]) / 2
    return _energy("NVML power", np.concatenate([[0.0], np.cumsum(between)]), times_s, timeline)


def package_energy(samples: NodeSamples, timeline: Timeline) -> Energy | None:
    """Return the energy of a node's CPU packages; None if it was not sampled."""
    counter = samples.column("package_energy_j")
    return _energy("RAPL", counter, samples.times_s, timeline) if _known(counter) >= 2 else None


def _known(values: Values) -> int:
    return int((~np.isnan(values)).sum())


def _energy(source: Source, joules: Values, times_s: Values, timeline: Timeline) -> Energy:
    """Return the energy from a counter in joules; between two samples it is taken to grow evenly."""
    known = ~np.isnan(joules)
    joules, times_s = np.maximum.accumulate(joules[known]), times_s[known]
    edges = [(span.begin_s, span.end_s) for span in timeline.spans if span.phase in ("training", "run")]
    measured = [float(np.diff(np.interp(edge, times_s, joules))[0]) for edge in edges]
    return Energy(
        source=source,
        run_j=rounded(float(joules[-1] - joules[0])),
        measured_j=rounded(math.fsum(measured)) if measured else None,
    )
