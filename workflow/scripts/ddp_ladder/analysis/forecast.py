"""The forecast of a stage: from the runs below each of its scales, results/forecast/<stage>.json, and its words.

A forecast is frozen when its first run succeeds: its error would say nothing otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field

from ddp_ladder.analysis.prediction import Prediction, predict, series_of, upper_bound
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.common.files import canonical_sha256, readable, write_json
from ddp_ladder.common.formats import NARROW_SPACE, grouped, percent, significant
from ddp_ladder.common.model import Model, Several, Version1
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.measuring.statistic import median
from ddp_ladder.plan.plan import Hours, HourUnit, Plan, RunSpec, ScaleJob
from ddp_ladder.records.record import Record
from ddp_ladder.settings.terms import Mode

DIGITS = 10
SAME_STEPS = 1.05  # runs whose steps differ by no more than this factor make the same number of steps


class SeriesForecast(Prediction):
    """What is predicted for a variant and mode at a scale."""

    model_config = ConfigDict(extra="ignore")  # files of earlier versions have more fields
    variant: str
    specs: str  # digest of the runs that it is for; of other settings, it says nothing
    runs: Annotated[int, Field(ge=1)]
    run_s: float | None  # of one run, with its start-up; without samples_per_s it follows from the bound

    @property
    def key(self) -> tuple[str, str, Mode]:
        return self.scale, self.variant, self.mode

    @property
    def rate_in_words(self) -> str:
        """Return ``63,000 samples/s [58,000-66,000]``, or the upper bound and why it is one."""
        if self.samples_per_s is None:
            is_alone = self.baseline == self.largest_measured
            why = f"only {self.baseline} was measured" if is_alone else "too far from what was measured"
            return f"at most {significant(self.samples_per_s_bound)} samples/s (upper bound: {why})"
        ends = f"{significant(self.samples_per_s_low)}-{significant(self.samples_per_s_high)}"
        return f"{significant(self.samples_per_s)} samples/s [{ends}]"


class Forecast(Model):
    """The forecast of a stage."""

    schema_version: Version1
    stage: str
    series: Several[SeriesForecast] = Field(min_length=1)


def forecast_file(results: Path, stage: str) -> Path:
    """Return the path of a stage's forecast."""
    return results / "forecast" / f"{stage}.json"


def series_of_job(job: ScaleJob) -> dict[tuple[str, Mode], list[RunSpec]]:
    """Return the planned runs of a job by variant and mode, without the plain baseline."""
    return grouped(((run.variant, run.mode), run) for run in job.runs if not run.is_plain)


def specs_of(runs: Sequence[RunSpec]) -> str:
    """Return the digest of the runs of one series."""
    return canonical_sha256([run.hash for run in runs])[:DIGITS]


def read_forecast(results: Path, stage: str) -> tuple[SeriesForecast, ...]:
    """Return the forecast of a stage; empty if there is none that can be read: the next gate writes it again."""
    file = readable(Forecast, forecast_file(results, stage))
    return file.series if file is not None else ()


def planned_forecasts(results: Path, plan: Plan) -> Iterator[tuple[ScaleJob, SeriesForecast]]:
    """Yield the forecasts of the plan's jobs, in its order, without series that the settings have changed since."""
    for stage in plan.stages:
        written = read_forecast(results, stage)
        for job in plan.stage_jobs(stage):
            planned = {(str(job.scale), *key): specs_of(runs) for key, runs in series_of_job(job).items()}
            yield from ((job, forecast) for forecast in written if planned.get(forecast.key) == forecast.specs)


def write_forecast(results: Path, stage: str, forecast: Forecast | None) -> None:
    """Write the forecast of a stage, or delete it for None. Raises OSError (NotWritten)."""
    file = forecast_file(results, stage)
    if forecast is None:
        file.unlink(missing_ok=True)
    else:
        write_json(file, forecast.model_dump())


def make_forecast(
    plan: Plan, stage: str, runs: RunRecords, left_out: Collection[str], is_open: bool
) -> Forecast | None:
    """Return the forecast of a stage; None if nothing was measured below it.

    left_out: variants that the stage will not run. is_open: whether the gate before it is; otherwise nothing new is
    predicted, and only what was predicted for runs that have begun stays.
    """
    written = {(*forecast.key, forecast.specs): forecast for forecast in read_forecast(runs.results, stage)}
    forecasts: list[SeriesForecast | None] = []
    for job in plan.stage_jobs(stage):
        below = [run for smaller in plan.jobs[: plan.jobs.index(job)] for run in smaller.runs]
        records = {spec.name: runs.believed(spec) for spec in below if is_open and runs.is_believed(spec)}
        points = scale_points(below, records, plan.may_differ, plan.gates)
        for (variant, mode), specs in series_of_job(job).items():
            if any(runs.kept(spec) is not None for spec in specs):
                forecasts.append(written.get((str(job.scale), variant, mode, specs_of(specs))))
            elif is_open and variant not in left_out:
                forecasts.append(_predicted(specs, points, records))
    series = tuple(filter(None, forecasts))
    return Forecast(schema_version=1, stage=stage, series=series) if series else None


def _predicted(
    specs: Sequence[RunSpec], points: Sequence[ScalePoint], records: Mapping[str, Record]
) -> SeriesForecast | None:
    """Return what is predicted for the runs of one variant and mode; None if nothing below compares with them."""
    spec = specs[0]
    series = series_of(points, spec.variant, spec.mode)
    if not series.points:
        return None
    by_scale = {point.scale: point for point in points if (point.variant, point.mode) == (spec.variant, spec.mode)}
    measured = [by_scale[own.scale] for own in series.points]
    near = max(measured, key=lambda point: (point.world_size <= spec.gpus, point.world_size, point.nodes))
    prediction = predict(series, spec.scale)
    if prediction.samples_per_s is prediction.samples_per_s_bound is None:
        return None
    batch = near.batch_per_gpu * spec.gpus if spec.mode == "weak" else near.global_batch
    step_s = batch / (prediction.samples_per_s or upper_bound(series, spec.scale))
    first, last = (
        [record for record in records.values() if (record.spec.variant, record.spec.mode, record.spec.scale) == key]
        for key in ((spec.variant, spec.mode, measured[0].scale), (spec.variant, spec.mode, near.scale))
    )
    return SeriesForecast(
        **prediction.model_dump(),
        variant=spec.variant,
        specs=specs_of(specs),
        runs=len(specs),
        run_s=run_s(last, first, step_s, batch / near.global_batch),
    )


def run_s(near: Sequence[Record], first: Sequence[Record], step_s: float, growth: float) -> float | None:
    """Return the time of a run with this step time; None if none was timed.

    near, first: good runs of the nearest and of the smallest scale below. growth: of the global batch from ``near`` on.
    Start-up stays as it was. A script that counts epochs makes fewer steps with a larger batch: two measured scales
    tell; after a single one the steps are taken as equal, which is the longer.
    """
    timings = [record.timing for record in near if record.timing]
    if not timings:
        return None
    wall_s, startup_s = median([timing.wall_s for timing in timings]), median([t.startup_s or 0.0 for t in timings])
    if any(rank.ended_by == "max_seconds" for record in near for rank in record.ranks):
        return wall_s
    steps, before = (median([max(rank.steps for rank in record.ranks) for record in side]) for side in (near, first))
    times = step_s / median([t.step_time_s for t in timings]) / (growth if before > SAME_STEPS * steps else 1.0)
    return startup_s + max(0.0, wall_s - startup_s) * times


def forecast_line(job: ScaleJob, forecast: SeriesForecast, unit: HourUnit) -> str:
    """Return ``stage3 2x4: forecast 63,000 samples/s [58,000-66,000], 85 % efficiency, 0.40 GPU h``.

    Otherwise ``stage2 1x2: at most 4,000 samples/s (upper bound: only 1x1 was measured), at least 0.1 GPU h``.
    """
    name, is_bound = _place(forecast, several=len(series_of_job(job)) > 1), forecast.samples_per_s is None
    text = f"{job.stage} {name}: {'' if is_bound else 'forecast '}{forecast.rate_in_words}"
    text += f", {percent(forecast.efficiency)} efficiency" if forecast.efficiency is not None else ""
    if forecast.run_s is not None:
        hours = unit.in_words(Hours.held(forecast.runs * forecast.run_s / 3600, job.scale.nodes, job.scale.world_size))
        text += f", {'at least ' if is_bound or job.is_adaptive else ''}{hours}"
    return f"{text}{forecast.doubt_in_words}".replace(NARROW_SPACE, " ")


def _place(forecast: SeriesForecast, several: bool) -> str:
    return f"{forecast.scale} {forecast.mode} {forecast.variant}" if several else forecast.scale


def error_rows(
    forecasts: Iterable[tuple[ScaleJob, SeriesForecast]], points: Sequence[ScalePoint]
) -> list[tuple[str, str, str]]:
    """Return place, forecast and what was measured, of each scale that has been measured since, in the plan's order."""
    rates = {(str(point.scale), point.variant, point.mode): point["samples_per_s"] for point in points}
    measured = [(forecast, rate) for _, forecast in forecasts if (rate := rates.get(forecast.key))]
    several = len({forecast.key[1:] for forecast, _ in measured}) > 1
    return [(_place(own, several), own.rate_in_words, _measured_in_words(own, rate)) for own, rate in measured]


def _measured_in_words(forecast: SeriesForecast, rate: float) -> str:
    """Return ``measured 23,071, 3.7 % more, inside the interval``; of a bound ``measured 22,934, 55 % of it``."""
    low, high = forecast.samples_per_s_low, forecast.samples_per_s_high
    times = rate / (forecast.samples_per_s or forecast.samples_per_s_bound or math.inf)
    if low is None or high is None:
        return f"measured {significant(rate)}, {percent(times)} of it".replace(NARROW_SPACE, " ")
    gap = f"{100 * abs(times - 1):.1f} % {'more' if times >= 1 else 'less'}"
    return f"measured {significant(rate)}, {gap}, {'inside' if low <= rate <= high else 'outside'} the interval"
