"""How the time of a sample depends on the scale: the forms, and their fit to what was measured. Pure.

The figure is the time that one GPU spends on each of its samples, n / X(n) in seconds, with n GPUs and X samples/s: a
constant if scaling is perfect. A form is a sum of terms that are at least 0; it is fitted to the relative differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.analysis.measured import Measured
from ddp_ladder.settings.terms import Mode, Scale

Terms = Callable[[Scale], tuple[float, ...]]


@dataclass(frozen=True)
class Fitted:
    """A form with its parameters."""

    name: str
    formula: str
    parameters: dict[str, float]
    gpu_s_per_sample: Callable[[Scale], float]
    residual: float
    """Largest relative difference between the form and a measured scale."""


def fitted_forms(points: Sequence[Measured], at: Scale) -> dict[str, Fitted]:
    """Return the forms that the measured scales determine, by name, fitted to them; ``at`` is what they are for."""
    by_level = _levels(points, at)
    forms = [
        _fit("ring", "a + b (n-1)/n", ("compute_s", "network_s"), _over_gpus(_ring), points),
        _fit("log2", "a + b log2(n)", ("compute_s", "network_s"), _over_gpus(math.log2), points),
        _by_level("ring by level", "a + b (g-1)/g + c (k-1)/k", _ring, by_level, points),
        _by_level("log2 by level", "a + b log2(g) + c log2(k)", math.log2, by_level, points),
        _fit("Amdahl", "a (1 + s (n-1))", ("compute_s", "serial_s"), _over_gpus(lambda n: n - 1), points),
        _gustafson(points),
    ]
    if len({point.scale.world_size for point in points}) >= 3:  # fewer do not determine three parameters
        usl = ("compute_s", "contention_s", "coherence_s")
        forms.append(_fit("USL", "a (1 + s (n-1) + t n (n-1))", usl, _usl, points))
    return {form.name: form for form in forms}


def used_for(mode: Mode) -> tuple[str, ...]:
    """Return the names of the forms whose mean is the prediction.

    In strong mode the batch of a GPU shrinks as n grows, and the all-reduce does not: per sample, it grows as n-1.
    """
    averaged = ("ring", "log2", "ring by level", "log2 by level")
    return averaged if mode == "weak" else (*averaged, "Amdahl")


def _ring(n: int) -> float:
    return (n - 1) / n


def _over_gpus(term: Callable[[int], float]) -> Terms:
    return lambda scale: (1.0, float(term(scale.world_size)))


def _usl(scale: Scale) -> tuple[float, ...]:
    n = scale.world_size
    return 1.0, n - 1.0, n * (n - 1.0)


@dataclass(frozen=True)
class _Levels:
    """Which levels of the machine the measured scales tell apart: inside a node, and between nodes."""

    inside: bool
    between: bool


def _levels(points: Sequence[Measured], at: Scale) -> _Levels:
    nodes = {point.scale.nodes for point in points}
    gpus = {point.scale.gpus_per_node for point in points}
    same_nodes = gpus == {at.gpus_per_node}
    return _Levels(inside=len(gpus) > 1, between=len(nodes) > 1 and (len(gpus) > 1 or same_nodes))


def _by_level(
    name: str, formula: str, term: Callable[[int], float], levels: _Levels, points: Sequence[Measured]
) -> Fitted:
    """Return a form with a term for each level, or with one over all GPUs if the points cannot separate the levels."""
    if levels.inside and levels.between:
        terms: Terms = lambda scale: (1.0, float(term(scale.gpus_per_node)), float(term(scale.nodes)))  # noqa: E731
        return _fit(name, formula, ("compute_s", "inside_node_s", "between_nodes_s"), terms, points)
    if levels.between:
        terms = lambda scale: (1.0, float(term(scale.nodes)))  # noqa: E731
        return _fit(name, formula, ("node_s", "between_nodes_s"), terms, points)
    return _fit(name, formula, ("compute_s", "network_s"), _over_gpus(term), points)


def _fit(name: str, formula: str, names: tuple[str, ...], terms: Terms, points: Sequence[Measured]) -> Fitted:
    rows = np.array([terms(point.scale) for point in points])
    times = np.array([point.gpu_s_per_sample for point in points])
    found = _least_squares(rows / times[:, None])

    # Where the measured scales are far from any form, nothing may be left for compute: a time is never 0.
    least = float(times.min()) / 100

    def time(scale: Scale) -> float:
        return max(least, float(np.dot(found, terms(scale))))

    parameters = {key: float(value) for key, value in zip(names, found, strict=True)}
    return Fitted(name, formula, parameters, time, _residual(time, points))


def _gustafson(points: Sequence[Measured]) -> Fitted:
    """Return Gustafson's law, X(n) = X(1) (n - s (n-1)): linear in the rate of a GPU instead of its time."""
    rates = np.array([1 / point.gpu_s_per_sample for point in points])
    rows = np.array([(1.0, -_ring(point.scale.world_size)) for point in points])
    found = _least_squares(rows / rates[:, None])
    alone, lost = float(found[0]), min(float(found[1]), 0.99 * float(found[0]))

    def time(scale: Scale) -> float:
        return 1 / (alone - lost * _ring(scale.world_size))

    parameters = {"samples_per_s_of_one": alone, "serial_fraction": lost / alone}
    return Fitted("Gustafson", "1 / (r (1 - s (n-1)/n))", parameters, time, _residual(time, points))


def _least_squares(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the factors of at least 0 with which each row's sum is nearest to 1."""
    from scipy.optimize import nnls  # takes half a second, which no gate and no report without a fit should pay

    found: NDArray[np.float64] = nnls(rows, np.ones(len(rows)))[0]
    return found


def _residual(time: Callable[[Scale], float], points: Sequence[Measured]) -> float:
    return max(abs(time(point.scale) / point.gpu_s_per_sample - 1) for point in points)
