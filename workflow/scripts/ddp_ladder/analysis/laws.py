"""The laws of scaling, fitted to what was measured: for the report alone, not for the prediction. Pure.

The figure is the time that one GPU spends on each of its samples: a constant if scaling is perfect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.analysis.measured import Measured
from ddp_ladder.settings.terms import Scale


@dataclass(frozen=True)
class Law:
    """A law with its parameters. residual: its largest relative difference from a measured scale."""

    name: str
    formula: str
    parameters: dict[str, float]
    gpu_s_per_sample: Callable[[Scale], float]
    residual: float


def laws(points: Sequence[Measured]) -> tuple[Law, ...]:
    """Return Amdahl's and Gustafson's laws, and USL if its three parameters have as many numbers of GPUs."""
    enough = len({point.scale.world_size for point in points}) >= 3
    return (amdahl(points), _gustafson(points), *([_usl(points)] if enough else ()))


def amdahl(points: Sequence[Measured]) -> Law:
    """Return Amdahl's law: a serial part, which each GPU waits for."""
    return _law("Amdahl", "a + s (n-1)", ("compute_s", "serial_s"), lambda n: (1.0, n - 1.0), points)


def _usl(points: Sequence[Measured]) -> Law:
    names = ("compute_s", "contention_s", "coherence_s")
    return _law("USL", "a + s (n-1) + t n (n-1)", names, lambda n: (1.0, n - 1.0, n * (n - 1.0)), points)


def _gustafson(points: Sequence[Measured]) -> Law:
    """Return Gustafson's law, X(n) = X(1) (n - s (n-1)): linear in the rate of a GPU instead of its time."""
    alone, lost = _least_squares([(1.0, -_ring(p)) for p in points], [1 / p.gpu_s_per_sample for p in points])
    lost = min(lost, 0.99 * alone)

    def time(scale: Scale) -> float:
        return 1 / (alone - lost * (scale.world_size - 1) / scale.world_size)

    parameters = {"samples_per_s_of_one": alone, "serial_fraction": lost / alone}
    return Law("Gustafson", "1 / (r (1 - s (n-1)/n))", parameters, time, _residual(time, points))


def _ring(point: Measured) -> float:
    return (point.scale.world_size - 1) / point.scale.world_size


def _law(
    name: str,
    formula: str,
    names: tuple[str, ...],
    terms: Callable[[int], tuple[float, ...]],
    points: Sequence[Measured],
) -> Law:
    times = [point.gpu_s_per_sample for point in points]
    found = _least_squares([terms(point.scale.world_size) for point in points], times)
    least = min(times) / 100  # far from any law nothing may be left for compute: a time is never 0

    def time(scale: Scale) -> float:
        return max(least, float(np.dot(found, terms(scale.world_size))))

    return Law(name, formula, dict(zip(names, found, strict=True)), time, _residual(time, points))


def _least_squares(rows: Sequence[tuple[float, ...]], values: Sequence[float]) -> list[float]:
    """Return the factors of at least 0 with the least squares of the relative differences."""
    from scipy.optimize import nnls  # takes half a second, which no gate and no report without a fit should pay

    scaled: NDArray[np.float64] = np.array(rows) / np.array(values)[:, None]
    return [float(factor) for factor in nnls(scaled, np.ones(len(scaled)))[0]]


def _residual(time: Callable[[Scale], float], points: Sequence[Measured]) -> float:
    return max(abs(time(point.scale) / point.gpu_s_per_sample - 1) for point in points)
