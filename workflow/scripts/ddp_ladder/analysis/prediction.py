"""What is predicted for a scale: throughput, efficiency and cost, with notes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddp_ladder.analysis.estimate import estimate, upper_bound
from ddp_ladder.analysis.measured import Measured, Series
from ddp_ladder.settings.config_keys import GateThresholds
from ddp_ladder.settings.terms import Mode, Scale

MOST_EFFICIENCY = GateThresholds().max_efficiency


@dataclass(frozen=True)
class Prediction:
    """The throughput of all GPUs of a scale. Efficiency is per GPU, against the smallest measured scale (baseline).

    None where it is not known; then samples_per_s_bound is what nothing lost beyond the measured scales would give.
    _low and _high: a 90 % interval; of a measured scale, the 95 % interval of its repeats, and None without any.
    """

    scale: str
    mode: Mode
    gpus: int
    samples_per_s: float | None
    samples_per_s_low: float | None
    samples_per_s_high: float | None
    samples_per_s_bound: float | None
    efficiency: float | None
    efficiency_low: float | None
    efficiency_high: float | None
    gpu_hours_per_million_samples: float | None
    gpu_hours_per_million_samples_low: float | None
    gpu_hours_per_million_samples_high: float | None
    baseline: str
    largest_measured: str
    is_measured: bool
    notes: tuple[str, ...]


def predict(series: Series, at: Scale) -> Prediction:
    """Return the prediction for a scale; a measured scale's own figure. Raises ValueError for an empty series."""
    if not series.points:
        raise ValueError("no scale was measured")
    found = estimate(series, at)
    rates = (found.samples_per_s, found.low, found.high) if found else (None, None, None)
    efficiencies = [_over(rate, at.world_size / series.smallest.gpu_s_per_sample) for rate in rates]
    hours = [_over(at.world_size * 1e6 / 3600, rate) for rate in rates]
    return Prediction(
        scale=str(at),
        mode=series.mode,
        gpus=at.world_size,
        samples_per_s=rates[0],
        samples_per_s_low=rates[1],
        samples_per_s_high=rates[2],
        samples_per_s_bound=None if found else upper_bound(series, at),
        efficiency=efficiencies[0],
        efficiency_low=efficiencies[1],
        efficiency_high=efficiencies[2],
        gpu_hours_per_million_samples=hours[0],
        gpu_hours_per_million_samples_low=hours[2],
        gpu_hours_per_million_samples_high=hours[1],
        baseline=str(series.smallest.scale),
        largest_measured=str(series.largest.scale),
        is_measured=series.at(at) is not None,
        notes=tuple(_notes(series, at, found is not None)),
    )


def _over(value: float | None, by: float | None) -> float | None:
    return None if value is None or by is None else value / by


def _notes(series: Series, at: Scale, is_known: bool) -> Iterator[str]:
    if series.at(at):
        yield "this scale was measured: its own figure is shown"
        if not series.noise_of(series.smallest):
            yield "no scale was measured more than once: the noise is not known, and there is no interval"
        return
    if len(series.points) == 1:
        yield f"only {series.smallest.scale} was measured: no forecast, only an upper bound; measure a second scale"
    elif not is_known:
        yield "not known from these scales: only an upper bound"
    if at.nodes > 1 and all(point.scale.nodes == 1 for point in series.points):
        yield "crosses a node boundary that was not measured: measure two nodes to know what the network costs"
    if at.gpus_per_node > 1 and all(point.scale.gpus_per_node == 1 for point in series.points):
        yield "has several GPUs in a node, which was not measured: measure one full node"
    if (times := at.world_size / series.largest.scale.world_size) > 2:
        yield f"{times:.3g} times the largest measured number of GPUs: measure a scale in between"
    if too_fast := [str(point.scale) for point in series.points if _efficiency(series, point) > MOST_EFFICIENCY]:
        names = ", ".join(too_fast)
        yield f"efficiency above {100 * MOST_EFFICIENCY:.0f} % at {names}: do all scales run the same program?"


def _efficiency(series: Series, point: Measured) -> float:
    return series.smallest.gpu_s_per_sample / point.gpu_s_per_sample
