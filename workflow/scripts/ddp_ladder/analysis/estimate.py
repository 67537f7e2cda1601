"""The rate at a scale that was not measured, and how far it may be off. Pure.

The estimate is the mean of several forms (``forms``), each drawn through the nearest measured scale. The constants are
those that ``benchmarks/prediction.py --calibrate`` finds on published tables, rounded; docs/prediction.md shows how
well they hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddp_ladder.analysis.forms import Fitted, fitted_forms, used_for
from ddp_ladder.analysis.measured import Measured, Series, doublings
from ddp_ladder.analysis.network import AllReduce
from ddp_ladder.settings.terms import Scale


@dataclass(frozen=True)
class Distance:
    """How far a scale is from what was measured.

    doublings: of the number of GPUs, from the nearest measured scale.
    spread: difference between the forms that are averaged, as a difference of logarithms.
    residual: mean of their largest relative differences from the measured scales.
    """

    doublings: float
    spread: float
    residual: float
    is_new_level: bool


@dataclass(frozen=True)
class Width:
    """Half an interval as a sum of parts of a distance, as a difference of logarithms."""

    per_doubling: float
    of_spread: float
    of_residual: float
    of_new_level: float

    def of(self, distance: Distance) -> float:
        """Return half the interval."""
        known = self.per_doubling * distance.doublings + self.of_spread * distance.spread
        known += self.of_residual * distance.residual
        return known + (self.of_new_level if distance.is_new_level else 0.0)


SLOWER = Width(per_doubling=0.06, of_spread=1.2, of_residual=2.9, of_new_level=0.13)
FASTER = Width(per_doubling=0.013, of_spread=1.15, of_residual=0.0, of_new_level=0.03)
LOSS_OF_NEW_LEVEL = 0.03
"""What a new level costs beyond the forms: the median over sources. It may cost nothing: FASTER allows for that."""
SLOWER_FROM_ONE, FASTER_FROM_ONE = 0.18, 0.01
"""Half the interval per doubling if a single scale was measured, and efficiency 1 is assumed."""


@dataclass(frozen=True)
class Estimate:
    """Samples per second, and how far the rate may be below and above, as differences of logarithms."""

    samples_per_s: float
    slower: float
    faster: float

    @property
    def low(self) -> float:
        return self.samples_per_s * math.exp(-self.slower)

    @property
    def high(self) -> float:
        return self.samples_per_s * math.exp(self.faster)


def estimate(series: Series, at: Scale, network: AllReduce | None = None) -> Estimate:
    """Return the estimate for a scale; a measured scale's own rate, with the noise of its repeats.

    network: the measured all-reduce, which then is one more form. Raises ValueError for an empty series.
    """
    if not series.points:
        raise ValueError("no scale was measured")
    anchor, measured = series.nearest(at), series.at(at)
    noise = series.noise_of(anchor)
    if measured:
        return Estimate(measured.samples_per_s, noise, noise)
    if len(series.points) == 1:
        doubled = max(1.0, abs(doublings(anchor.scale, at)))
        slower, faster = SLOWER_FROM_ONE * doubled, FASTER_FROM_ONE * doubled
        return _estimate(at, anchor.gpu_s_per_sample, slower, faster, noise)
    time, distance = extrapolated(series, at, network)
    if distance.is_new_level and not network:
        time *= math.exp(LOSS_OF_NEW_LEVEL)
    return _estimate(at, time, SLOWER.of(distance), FASTER.of(distance), noise)


def _estimate(at: Scale, gpu_s_per_sample: float, slower: float, faster: float, noise: float) -> Estimate:
    return Estimate(at.world_size / gpu_s_per_sample, math.hypot(slower, noise), math.hypot(faster, noise))


def extrapolated(series: Series, at: Scale, network: AllReduce | None = None) -> tuple[float, Distance]:
    """Return the mean of the forms, in GPU seconds per sample, from at least two scales, and the distance from them."""
    anchor = series.nearest(at)
    forms = fitted_forms(series.points, at)
    used = [forms[name] for name in used_for(series.mode)]
    times = [_through(form, anchor, at) for form in used]
    if network:
        exposed, known = (network.exposed_s_per_sample(scale, series.mode) for scale in (at, anchor.scale))
        times.append(anchor.gpu_s_per_sample + max(0.0, exposed - known))
    logs = [math.log(time) for time in times]
    distance = Distance(
        doublings=abs(doublings(anchor.scale, at)),
        spread=max(logs) - min(logs),
        residual=sum(form.residual for form in used) / len(used),
        is_new_level=bool(new_levels(series, at)),
    )
    return math.exp(sum(logs) / len(logs)), distance


def _through(form: Fitted, anchor: Measured, at: Scale) -> float:
    """Return the form's time per sample at a scale, drawn through a measured one."""
    return anchor.gpu_s_per_sample * form.gpu_s_per_sample(at) / form.gpu_s_per_sample(anchor.scale)


def new_levels(series: Series, at: Scale) -> tuple[str, ...]:
    """Return the levels of the machine that a scale needs and no measured scale has, in words."""
    found = []
    if at.nodes > 1 and all(point.scale.nodes == 1 for point in series.points):
        found.append("crosses a node boundary that was not measured: measure two nodes to know what the network costs")
    if at.gpus_per_node > 1 and all(point.scale.gpus_per_node == 1 for point in series.points):
        found.append("has several GPUs in a node, which was not measured: measure one full node")
    return tuple(found)
