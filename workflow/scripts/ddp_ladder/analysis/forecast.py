"""The forecast of a stage: from the runs below each of its scales, results/forecast/<stage>.json, and its words.

A forecast is frozen when its first run succeeds: its error would say nothing otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ddp_ladder.analysis.prediction import predict, series_of, upper_bound
from ddp_ladder.common.files import canonical_sha256, read_json, write_json
from ddp_ladder.common.formats import NARROW_SPACE, percent, significant
from ddp_ladder.common.model import Model, Several
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob
from ddp_ladder.preflight.result import result_of
from ddp_ladder.records.record import Record
from ddp_ladder.records.run_records import RunRecords
from ddp_ladder.records.statistic import median
from ddp_ladder.settings.terms import Mode, Scale

SCHEMA_VERSION = 3
DIGITS = 10
HOUR_S = 3600.0
LEAST_HOURS = 0.01  # below, seconds are shown
LIMITS = ("max_steps", "max_seconds")
Amount = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class SeriesForecast(Model):
    """What is predicted for a variant and mode at a scale. _low and _high: meant to hold nine of ten outcomes.

    None where it is not known; run_s then follows from samples_per_s_bound. specs: digest of the runs that it is for;
    of other settings, it says nothing. measured: the scales that it was made from, smallest first. efficiency: per
    GPU, against the smallest of them. run_s: of one run, with its start-up.
    """

    variant: str
    mode: Mode
    specs: str
    runs: Count
    measured: Several[str] = Field(min_length=1)
    samples_per_s: Amount | None
    samples_per_s_low: Amount | None
    samples_per_s_high: Amount | None
    samples_per_s_bound: Amount | None
    efficiency: Amount | None
    run_s: Amount | None


class ScaleForecast(Model):
    """What is predicted for the job of a scale, with all planned runs of its series."""

    scale: str
    gpus: Count
    preflight_s: Amount
    series: Several[SeriesForecast] = Field(min_length=1)


class Forecast(Model):
    """The forecast of a stage."""

    schema_version: Annotated[int, Field(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]
    stage: str
    scales: Several[ScaleForecast] = Field(min_length=1)


def forecast_file(results: Path, stage: str) -> Path:
    """Return the path of a stage's forecast."""
    return results / "forecast" / f"{stage}.json"


def series_of_job(job: ScaleJob) -> dict[tuple[str, Mode], tuple[RunSpec, ...]]:
    """Return the planned runs of a job by variant and mode, without the plain baseline."""
    found: dict[tuple[str, Mode], list[RunSpec]] = {}
    for run in job.runs:
        if not run.is_plain:
            found.setdefault((run.variant, run.mode), []).append(run)
    return {key: tuple(runs) for key, runs in found.items()}


def specs_of(runs: Sequence[RunSpec]) -> str:
    """Return the digest of the runs of one series."""
    return canonical_sha256([run.hash for run in runs])[:DIGITS]


def read_forecast(results: Path, stage: str) -> Forecast | None:
    """Return the forecast of a stage; None without one. Raises OSError, or ValueError naming the file."""
    file = forecast_file(results, stage)
    try:
        return Forecast.from_json(read_json(file))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{file}: not a forecast: {error}") from None


def planned_forecasts(results: Path, plan: Plan) -> Iterator[tuple[ScaleJob, ScaleForecast]]:
    """Yield the forecasts of the plan's jobs, in its order, without series that the settings have changed since.

    A file that cannot be read is left out: the next gate writes it again.
    """
    for stage in plan.stages:
        try:
            found = read_forecast(results, stage)
        except (OSError, ValueError):
            continue
        by_scale = {one.scale: one for one in found.scales} if found else {}
        for job in plan.stage_jobs(stage):
            one = by_scale.get(str(job.scale))
            planned = {key: specs_of(runs) for key, runs in series_of_job(job).items()}
            valid = [each for each in one.series if planned.get((each.variant, each.mode)) == each.specs] if one else []
            if one and valid:
                yield job, one.replace(series=tuple(valid))


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
            preflight_s = below.preflight_s if preflight_s is None else preflight_s
            scale, gpus = str(job.scale), job.scale.world_size
            scales.append(ScaleForecast(scale=scale, gpus=gpus, preflight_s=preflight_s, series=tuple(series)))
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

    @property
    def preflight_s(self) -> float:
        """Return how long the job's preflight will take: as long as the last one."""
        took = [took_s for one in self._jobs if (took_s := _preflight_s(self._runs.results, one)) is not None]
        return took[-1] if took and self._job.preflight.enabled else 0.0

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
        return SeriesForecast(
            variant=spec.variant,
            mode=spec.mode,
            specs=specs_of(specs),
            runs=len(specs),
            measured=tuple(str(one.scale) for one in series.points),
            samples_per_s=found.samples_per_s,
            samples_per_s_low=found.samples_per_s_low,
            samples_per_s_high=found.samples_per_s_high,
            samples_per_s_bound=found.samples_per_s_bound,
            efficiency=found.efficiency,
            run_s=wall_s_at(self._lengths(points), batch / rate, batch),
        )

    def _point(self, spec: RunSpec, scale: object) -> ScalePoint:
        wanted = (spec.variant, spec.mode, scale)
        return next(point for point in self._points if (point.variant, point.mode, point.scale) == wanted)

    def _of(self, point: ScalePoint) -> list[Record]:
        key = (point.variant, point.mode, point.scale)
        return [one for one in self._records.values() if (one.spec.variant, one.spec.mode, one.spec.scale) == key]

    def _lengths(self, points: Sequence[ScalePoint]) -> list[RunLength]:
        return [found for point in points if (found := run_length(self._of(point), point.global_batch))]


def _preflight_s(results: Path, job: ScaleJob) -> float | None:
    try:
        found = result_of(results, job.scale)
    except (OSError, ValueError):
        return None
    return found.took_s if found else None


@dataclass(frozen=True)
class RunLength:
    """What the runs of one scale took: medians. wall_s with startup_s; steps and step_time_s of the slowest rank."""

    scale: Scale
    wall_s: float
    startup_s: float
    steps: float
    step_time_s: float
    batch: float  # global
    ended_by: str


def run_length(records: Sequence[Record], batch: float) -> RunLength | None:
    """Return what the good runs of a scale took; None without one. batch: the global one that they really had."""
    good = [(one, one.timing) for one in records if one.status == "ok" and one.timing]
    if not good:
        return None
    limits = {rank.ended_by for record, _ in good for rank in record.ranks} & set(LIMITS)
    return RunLength(
        scale=good[0][0].spec.scale,
        wall_s=median([timing.wall_s for _, timing in good]),
        startup_s=median([timing.startup_s or 0.0 for _, timing in good]),
        steps=median([max(rank.steps for rank in record.ranks) for record, _ in good]),
        step_time_s=median([timing.step_time_s for _, timing in good]),
        batch=batch,
        ended_by=sorted(limits)[0] if limits else "script",
    )


def wall_s_at(below: Sequence[RunLength], step_time_s: float, batch: float) -> float | None:
    """Return the time of a run with this step time and global batch; None if nothing was measured below.

    below: smallest scale first. Training grows with steps and step time; start-up stays as it was.
    """
    if not below:
        return None
    near = below[-1]
    trained_s = max(0.0, near.wall_s - near.startup_s)
    if near.ended_by == "max_seconds" or not near.steps or not near.step_time_s:
        return near.wall_s
    growth = steps_at(below, batch) * step_time_s / (near.steps * near.step_time_s)
    return near.startup_s + trained_s * growth


def steps_at(below: Sequence[RunLength], batch: float) -> float:
    """Return the steps of a run with this global batch: as many as below, or those of as many samples.

    A script that counts epochs makes fewer steps with a larger batch; two measured scales tell. After a single one, or
    if measure.max_steps ended the runs, the steps are taken as equal, which is the longer.
    """
    near, first = below[-1], below[0]
    if near.ended_by == "max_steps" or near.batch <= first.batch:
        return near.steps
    fewer = near.steps * near.batch / (first.steps * first.batch) if first.steps else 0.0  # 1: as many samples
    as_many_steps = near.batch / first.batch
    counts_samples = abs(fewer - 1) < abs(fewer - as_many_steps)
    return near.steps * near.batch / batch if counts_samples else near.steps


def device_of(plan: Plan) -> str:
    """Return ``GPU``, or ``process`` for a site without."""
    return "GPU" if any(run.device == "cuda" for run in plan.runs) else "process"


def forecast_lines(job: ScaleJob, forecast: ScaleForecast, device: str) -> Iterator[str]:
    """Yield ``stage3 2x4: forecast 63,000 samples/s [58,000-66,000], 85 % efficiency, 0.40 GPU h``; one per series.

    Otherwise ``stage2 1x2: at most 4,000 samples/s (upper bound: only 1x1 was measured), at least 12 GPU s``.
    """
    several = len({(run.variant, run.mode) for run in job.runs if not run.is_plain}) > 1
    for one in forecast.series:
        name = f"{job.stage} {forecast.scale}" + (f" {one.mode} {one.variant}" if several else "")
        least, what = ("at least ", "") if one.samples_per_s is None else ("", "forecast ")
        text = f"{name}: {what}{_rate(one)}"
        text += f", {percent(one.efficiency)} efficiency" if one.efficiency is not None else ""
        if one.run_s is not None:
            gpu_hours = one.runs * one.run_s * forecast.gpus / HOUR_S
            if job.is_adaptive:
                text += f", {job.at_least} to {job.at_most} repeats"
            text += f", {least}{hours(gpu_hours, device, gpu_hours * job.at_most / job.at_least)}"
            text += " in each job" if job.jobs > 1 else ""
        yield text.replace(NARROW_SPACE, " ")


def hours(value: float, device: str, at_most: float | None = None) -> str:
    """Return ``0.40 GPU h``; ``12 GPU s`` if that is too little; ``0.40 to 1.1 GPU h`` with a larger ``at_most``."""
    ends = (value, value if at_most is None else at_most)
    many = ends[-1] >= LEAST_HOURS
    texts = dict.fromkeys(significant(end) if many else f"{end * HOUR_S:.0f}" for end in ends)  # equal ones once
    return f"{' to '.join(texts)} {device} {'h' if many else 's'}"


def _rate(one: SeriesForecast) -> str:
    if one.samples_per_s is None:
        why = f"only {one.measured[0]} was measured" if len(one.measured) == 1 else "too far from what was measured"
        return f"at most {significant(one.samples_per_s_bound)} samples/s (upper bound: {why})"
    return f"{significant(one.samples_per_s)} samples/s [{_interval(one, '-')}]"


def _interval(one: SeriesForecast, to: str) -> str:
    return f"{significant(one.samples_per_s_low)}{to}{significant(one.samples_per_s_high)}"


@dataclass(frozen=True)
class ForecastError:
    """A forecast, or an upper bound, beside what was measured since."""

    scale: str
    variant: str
    mode: str
    forecast: SeriesForecast
    samples_per_s: float

    @property
    def is_inside(self) -> bool | None:
        """Return whether the interval holds what was measured; None for an upper bound."""
        low, high = self.forecast.samples_per_s_low, self.forecast.samples_per_s_high
        return None if low is None or high is None else low <= self.samples_per_s <= high

    @property
    def difference(self) -> float:
        """Return measured / forecast - 1, or of an upper bound measured / bound - 1."""
        one = self.forecast
        return self.samples_per_s / (one.samples_per_s or one.samples_per_s_bound or math.inf) - 1

    @property
    def in_words(self) -> str:
        """Return ``measured 23,071, 3.7 % more, inside the interval``; of a bound ``measured 22,934, 55 % of it``."""
        words = f"measured {significant(self.samples_per_s)}, "
        if self.is_inside is None:
            return words + f"{percent(1 + self.difference)} of it".replace(NARROW_SPACE, " ")
        words += f"{100 * abs(self.difference):.1f} % {'more' if self.difference >= 0 else 'less'}, "
        if self.is_inside:
            return words + "inside the interval"
        side = "above" if self.difference >= 0 else "below"
        return words + f"{side} the interval, which about one in ten is outside of"

    def cells(self, several: bool) -> tuple[str, ...]:
        """Return a row of HEADINGS."""
        one = self.forecast
        rate, inside = significant(one.samples_per_s), "yes" if self.is_inside else "no"
        interval, difference = _interval(one, " to "), f"{100 * self.difference:+.1f} %"
        if self.is_inside is None:
            rate, interval, inside = f"at most {significant(one.samples_per_s_bound)}", "upper bound", ""
            difference = f"{percent(1 + self.difference)} of it"
        return (
            f"{self.scale} {self.mode} {self.variant}" if several else self.scale,
            rate,
            interval,
            significant(self.samples_per_s),
            difference,
            inside,
            ", ".join(one.measured),
        )


HEADINGS = (
    "scale",
    "forecast (samples/s)",
    "90 % interval",
    "measured",
    "measured against forecast",
    "inside",
    "made from",
)


def forecast_errors(
    forecasts: Iterable[tuple[ScaleJob, ScaleForecast]], points: Sequence[ScalePoint]
) -> tuple[ForecastError, ...]:
    """Return each forecast whose scale has been measured since, in the plan's order."""
    rates = {(point.scale, point.variant, point.mode): point.samples_per_s for point in points}
    found = []
    for _, scale in forecasts:
        for one in scale.series:
            rate = rates.get((Scale.parse(scale.scale), one.variant, one.mode))
            if rate:
                found.append(ForecastError(scale.scale, one.variant, one.mode, one, rate))
    return tuple(found)


def error_lines(errors: Sequence[ForecastError]) -> list[str]:
    """Return the lines below the final table."""
    several = len({(one.variant, one.mode) for one in errors}) > 1
    lines = []
    for one in errors:
        place = f"{one.scale} {one.mode} {one.variant}" if several else one.scale
        lines.append(f"forecast {place}: {_rate(one.forecast)}; {one.in_words}")
    return lines
