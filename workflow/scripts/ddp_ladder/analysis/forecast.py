"""The forecast of a stage, from the runs measured below each of its scales.

What is predicted for runs that have begun is never written again: its error would say nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from ddp_ladder.analysis.estimate import upper_bound
from ddp_ladder.analysis.forecast_file import (
    SCHEMA_VERSION,
    Forecast,
    ScaleForecast,
    SeriesForecast,
    read_forecast,
    series_of_job,
    specs_of,
)
from ddp_ladder.analysis.measured import series_of
from ddp_ladder.analysis.prediction import predict
from ddp_ladder.analysis.run_length import RunLength, run_length, wall_s_at
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob
from ddp_ladder.preflight.assemble import believed as believed_preflight
from ddp_ladder.preflight.result import PreflightResult
from ddp_ladder.records.record import Record
from ddp_ladder.records.run_records import RunRecords
from ddp_ladder.settings.terms import Mode

HOUR_S = 3600.0
J_PER_KWH = 3.6e6
FIGURES = (
    *(f"{name}{end}" for name in ("samples_per_s", "efficiency") for end in ("", "_low", "_high")),
    "samples_per_s_bound",
)
"""What a forecast takes from the prediction as it is."""


def make_forecast(
    plan: Plan, stage: str, runs: RunRecords, left_out: Collection[str], is_open: bool
) -> Forecast | None:
    """Return the forecast of a stage; None if nothing was measured below it.

    left_out: variants that the stage will not run. is_open: whether the gate before it is; otherwise nothing new is
    predicted, and only what was predicted for runs that have begun stays.
    """
    begun = {(str(job.scale), *key) for job in plan.stage_jobs(stage) for key in _begun(job, runs)}
    written = _written(runs.results, stage)
    scales = []
    for job in plan.stage_jobs(stage):
        below, old = _Below(plan, job, runs), written.get(str(job.scale))
        known = {(one.variant, one.mode, one.specs): one for one in old.series} if old else {}
        series, preflight_s = [], None
        for (variant, mode), specs in series_of_job(job).items():
            if (str(job.scale), variant, mode) in begun:
                if old and (kept := known.get((variant, mode, specs_of(specs)))):
                    series.append(kept)
                    preflight_s = old.preflight_s
            elif is_open and variant not in left_out and (new := below.predicted(specs)):
                series.append(new)
        if series:
            scales.append(scale_forecast(job, below.preflight_s if preflight_s is None else preflight_s, series))
    return Forecast(schema_version=SCHEMA_VERSION, stage=stage, scales=tuple(scales)) if scales else None


def _written(results: Path, stage: str) -> Mapping[str, ScaleForecast]:
    try:
        found = read_forecast(results, stage)
    except (OSError, ValueError):
        return {}
    return {one.scale: one for one in (found.scales if found else ())}


def _begun(job: ScaleJob, runs: RunRecords) -> Iterator[tuple[str, Mode]]:
    """Yield variant and mode of the series of which a run is kept."""
    for key, specs in series_of_job(job).items():
        if any(runs.kept(spec) is not None for spec in specs):
            yield key


def scale_forecast(job: ScaleJob, preflight_s: float, series: Sequence[SeriesForecast]) -> ScaleForecast:
    """Return the forecast of a scale's job from those of its series."""
    gpus, times = job.scale.world_size, [one.run_s for one in series]
    job_s = None if None in times else preflight_s + sum(one.runs * (one.run_s or 0.0) for one in series)
    energies = [_energy_j(one) for one in series]
    return ScaleForecast(
        scale=str(job.scale),
        gpus=gpus,
        preflight_s=preflight_s,
        job_s=job_s,
        gpu_hours=None if job_s is None else job_s * gpus / HOUR_S,
        energy_kwh=None if None in energies else sum(energy or 0.0 for energy in energies) / J_PER_KWH,
        series=tuple(series),
    )


def _energy_j(one: SeriesForecast) -> float | None:
    if one.energy_j_per_sample is None or one.run_s is None:
        return None
    return one.runs * one.run_s * one.energy_j_per_sample * 1e6 / one.s_per_million_samples


class _Below:
    """What was measured at the scales that come before one in the plan; read only if something is predicted."""

    def __init__(self, plan: Plan, job: ScaleJob, runs: RunRecords) -> None:
        self._plan, self._job, self._runs = plan, job, runs
        self._jobs = plan.jobs[: plan.jobs.index(job)]
        self._specs = [run for one in self._jobs for run in one.runs]

    @cached_property
    def _records(self) -> dict[str, Record]:
        return {spec.name: self._runs.believed(spec) for spec in self._specs if self._runs.is_believed(spec)}

    @cached_property
    def _points(self) -> tuple[ScalePoint, ...]:
        return scale_points(self._specs, self._records, self._plan.may_differ, self._plan.gates)

    @cached_property
    def _preflights(self) -> list[PreflightResult]:
        return [found for one in self._jobs if (found := _preflight(self._runs.results, one))]

    @property
    def preflight_s(self) -> float:
        """Return how long the job's preflight will take: as long as the last one."""
        return self._preflights[-1].took_s if self._preflights and self._job.preflight.enabled else 0.0

    def predicted(self, specs: Sequence[RunSpec]) -> SeriesForecast | None:
        """Return what is predicted for the runs of one variant and mode; None if nothing below compares with them."""
        spec = specs[0]
        series = series_of(self._points, spec.variant, spec.mode)
        if not series.points:
            return None
        points = [self._point(spec, one.scale) for one in series.points]
        near = max(points, key=lambda point: (point.world_size <= spec.gpus, point.world_size, point.nodes))
        found = predict(series, spec.scale)
        rate = found.samples_per_s or upper_bound(series, spec.scale)
        batch = near.batch_per_gpu * spec.gpus if spec.mode == "weak" else near.global_batch
        step_time_s = batch / rate
        power_w = near.gpu_power_w
        return SeriesForecast(
            variant=spec.variant,
            mode=spec.mode,
            specs=specs_of(specs),
            runs=len(specs),
            measured=tuple(str(one.scale) for one in series.points),
            **{name: getattr(found, name) for name in FIGURES},
            step_time_s=step_time_s,
            s_per_million_samples=1e6 / rate,
            gpu_hours_per_million_samples=spec.gpus * 1e6 / rate / HOUR_S,
            energy_j_per_sample=None if power_w is None else power_w * spec.gpus / rate,
            run_s=wall_s_at(self._lengths(points), step_time_s, batch),
            notes=found.notes,
        )

    def _point(self, spec: RunSpec, scale: object) -> ScalePoint:
        wanted = (spec.variant, spec.mode, scale)
        return next(point for point in self._points if (point.variant, point.mode, point.scale) == wanted)

    def _of(self, point: ScalePoint) -> list[Record]:
        key = (point.variant, point.mode, point.scale)
        return [one for one in self._records.values() if (one.spec.variant, one.spec.mode, one.spec.scale) == key]

    def _lengths(self, points: Sequence[ScalePoint]) -> list[RunLength]:
        return [found for point in points if (found := run_length(self._of(point), point.global_batch))]


def _preflight(results: Path, job: ScaleJob) -> PreflightResult | None:
    try:
        return believed_preflight(results, job.scale)
    except (OSError, ValueError):
        return None
