"""What is predicted for a scale: throughput, efficiency and cost, with what each form says alone, and notes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ddp_ladder.analysis.estimate import estimate, new_levels
from ddp_ladder.analysis.forms import fitted_forms, used_for
from ddp_ladder.analysis.measured import Measured, Series
from ddp_ladder.analysis.network import AllReduce
from ddp_ladder.settings.config_keys import GateThresholds
from ddp_ladder.settings.terms import Mode, Scale

MOST_EFFICIENCY = GateThresholds().max_efficiency


@dataclass(frozen=True)
class Model:
    """What one form says about a scale, not drawn through a measured one.

    residual: its largest relative difference from a measured scale.
    """

    name: str
    formula: str
    samples_per_s: float
    residual: float
    in_prediction: bool
    parameters: dict[str, float]


@dataclass(frozen=True)
class Prediction:
    """The throughput of all GPUs of a scale. Efficiency is per GPU, against the smallest measured scale (baseline)."""

    scale: str
    mode: Mode
    gpus: int
    samples_per_s: float
    samples_per_s_low: float
    samples_per_s_high: float
    efficiency: float
    efficiency_low: float
    efficiency_high: float
    gpu_hours_per_million_samples: float
    gpu_hours_per_million_samples_low: float
    gpu_hours_per_million_samples_high: float
    baseline: str
    largest_measured: str
    is_measured: bool
    notes: tuple[str, ...]
    models: tuple[Model, ...]


def predict(series: Series, at: Scale, network: AllReduce | None = None) -> Prediction:
    """Return the prediction for a scale; a measured scale's own figure, with the noise of its repeats.

    network: the measured all-reduce, if it is known. Raises ValueError for an empty series.
    """
    found = estimate(series, at, network)
    ideal = at.world_size / series.smallest.gpu_s_per_sample
    return Prediction(
        scale=str(at),
        mode=series.mode,
        gpus=at.world_size,
        samples_per_s=found.samples_per_s,
        samples_per_s_low=found.low,
        samples_per_s_high=found.high,
        efficiency=found.samples_per_s / ideal,
        efficiency_low=found.low / ideal,
        efficiency_high=found.high / ideal,
        gpu_hours_per_million_samples=_gpu_hours(at, found.samples_per_s),
        gpu_hours_per_million_samples_low=_gpu_hours(at, found.high),
        gpu_hours_per_million_samples_high=_gpu_hours(at, found.low),
        baseline=str(series.smallest.scale),
        largest_measured=str(series.largest.scale),
        is_measured=series.at(at) is not None,
        notes=_notes(series, at),
        models=_models(series, at) if len(series.points) > 1 else (),
    )


def _gpu_hours(at: Scale, samples_per_s: float) -> float:
    return at.world_size * 1e6 / samples_per_s / 3600


def _models(series: Series, at: Scale) -> tuple[Model, ...]:
    used = used_for(series.mode)
    return tuple(
        Model(
            name=form.name,
            formula=form.formula,
            samples_per_s=at.world_size / form.gpu_s_per_sample(at),
            residual=form.residual,
            in_prediction=form.name in used,
            parameters=form.parameters,
        )
        for form in fitted_forms(series.points, at).values()
    )


def _notes(series: Series, at: Scale) -> tuple[str, ...]:
    found = []
    if series.at(at):
        found.append("this scale was measured: its own figure is shown")
        if not series.noise_of(series.smallest):
            found.append("no scale was measured more than once: the noise is not known, and the interval is empty")
    else:
        if len(series.points) == 1:
            found.append(f"only {series.smallest.scale} was measured: efficiency 1 is assumed; measure a second scale")
        found += new_levels(series, at)
        times = at.world_size / series.largest.scale.world_size
        if times > 2:
            found.append(f"{times:.3g} times the largest measured number of GPUs: measure a scale in between")
    too_fast = [str(point.scale) for point in series.points if _efficiency(series, point) > MOST_EFFICIENCY]
    if too_fast:
        names = ", ".join(too_fast)
        found.append(f"efficiency above {100 * MOST_EFFICIENCY:.0f} % at {names}: do all scales run the same program?")
    return tuple(found)


def _efficiency(series: Series, point: Measured) -> float:
    return series.smallest.gpu_s_per_sample / point.gpu_s_per_sample
