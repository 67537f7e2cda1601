"""Prediction of the throughput at a scale that was not measured, with a 90 % interval, or None where nothing is known.

The figure is the time that one GPU spends on each of its samples; its growth is the loss. A step from the nearest
smaller measured scale over d doublings of the GPUs loses, as a logarithm,

    d (usual + kept x what each doubling before it lost)

``usual`` and ``kept``, and the quantiles of what published tables lost more or less than that, are in calibration.json,
by kind of step; benchmarks/prediction.py writes it, and benchmarks/results/prediction.md shows how well it holds.
The forecast of a stage, results/forecast/<stage>.json, is made from the runs below each of its scales.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.common.files import canonical_sha256, readable, write_json
from ddp_ladder.common.formats import NARROW_SPACE, grouped, interval, percent, significant
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.model import Model, Several, Version1
from ddp_ladder.gates.interval import WIDEST, Estimate, factor, in_doubt
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.measuring.statistic import median
from ddp_ladder.plan.plan import Hours, HourUnit, Plan, RunSpec, ScaleJob
from ddp_ladder.records.record import Record
from ddp_ladder.settings.terms import MOST_EFFICIENCY, MOST_GPUS, PLAIN_VARIANT, REFERENCE_VARIANT, Mode, Scale

COUNTED = ("ok", "incomplete")  # states of scales that a prediction starts from
MOST_NODES = 100_000
Rate = Annotated[float, Field(ge=1e-6, le=1e15)]


class TableRow(Model):
    """A row of a table of measured scales, as people write it and as scaling.csv is; other columns are ignored."""

    model_config = ConfigDict(strict=False, extra="ignore", frozen=True, allow_inf_nan=False)
    variant: str = REFERENCE_VARIANT
    mode: Mode = "weak"
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)]
    gpus_per_node: Annotated[int, Field(ge=1, le=MOST_GPUS)]
    samples_per_s: Rate
    samples_per_s_low: Rate | None = None
    samples_per_s_high: Rate | None = None
    repeats: int = 1
    status: str = "ok"

    @property
    def scale(self) -> Scale:
        return Scale(self.nodes, self.gpus_per_node)

    @property
    def rate(self) -> Estimate:
        return Estimate(self.samples_per_s, self.samples_per_s_low, self.samples_per_s_high)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not (self.samples_per_s_low or 0.0) <= self.samples_per_s <= (self.samples_per_s_high or math.inf):
            raise ValueError("samples_per_s_low and samples_per_s_high: not an interval around samples_per_s")
        return self


Point = ScalePoint | TableRow


@dataclass(frozen=True)
class Measured:
    """One measured scale: samples per second of all its GPUs, one figure for each repeat."""

    scale: Scale
    repeats: tuple[float, ...]

    @property
    def samples_per_s(self) -> float:
        return median(self.repeats)

    @property
    def gpu_s_per_sample(self) -> float:
        """Return the time that one GPU spends on each of its samples, in seconds."""
        return self.scale.world_size / self.samples_per_s


@dataclass(frozen=True)
class MeasuredSeries:
    """The measured scales of one mode, smallest first; all the same program on the same kind of node."""

    mode: Mode
    points: tuple[Measured, ...]
    noise: float | None = None  # half the 95 % interval of each point, relative; None: that of the repeats
    doubt: str = ""  # why its figures may be wrong

    @classmethod
    def of(
        cls, mode: Mode, figures: Sequence[tuple[Scale, float]], noise: float | None = None, doubt: str = ""
    ) -> MeasuredSeries:
        """Return a series from (scale, samples/s); several figures of one scale are its repeats."""
        scales = sorted({scale for scale, _ in figures}, key=lambda scale: (scale.world_size, scale.nodes))
        repeats = [tuple(rate for scale, rate in figures if scale == own) for own in scales]
        return cls(mode, tuple(map(Measured, scales, repeats)), noise, doubt)

    @property
    def smallest(self) -> Measured:
        return self.points[0]

    @property
    def largest(self) -> Measured:
        return self.points[-1]

    def at(self, scale: Scale) -> Measured | None:
        return next((point for point in self.points if point.scale == scale), None)

    def noise_of(self, point: Measured) -> float:
        """Return half the 95 % interval of a point, relative: Student's t, with the variance of all points' repeats.

        0 if no scale has several repeats, and nothing else is known.
        """
        freedom = sum(len(point.repeats) - 1 for point in self.points)
        if self.noise is not None or not freedom:
            return self.noise or 0.0
        variance = sum(float(np.log(point.repeats).var()) * len(point.repeats) for point in self.points) / freedom
        return factor(freedom) * math.sqrt(variance / len(point.repeats))


def series_of(points: Sequence[Point], variant: str, mode: Mode) -> MeasuredSeries:
    """Return the measured scales of a variant and mode that compare with its first one, with the noise they show.

    Failed and suspect scales are left out. Repeats without an interval differ by more than the widest one.
    """
    good = [point for point in points if (point.variant, point.mode) == (variant, mode) and point.status in COUNTED]
    rates = [(point.rate, point) for point in good if point.rate]
    halves = [
        math.log(rate.high / rate.low if rate.low and rate.high else WIDEST) / 2
        for rate, point in rates
        if (rate.low and rate.high) or point.repeats > 1
    ]
    figures = [(point.scale, rate.value) for rate, point in rates]
    return MeasuredSeries.of(mode, figures, median(halves) if halves else None, in_doubt(*(rate for rate, _ in rates)))


CALIBRATION = Path(__file__).with_name("calibration.json")
LEAST_SCALES = 3  # of an outlook
NEEDED = "a header with nodes, gpus_per_node and samples_per_s, and numbers as 16621.0"
MOST_FACTOR = 4.0  # upper end / lower end of an interval: a wider one says nothing

Kind = Literal[
    "between measured scales",
    "inside a node, after the step from one GPU",
    "inside a node",
    "first of several nodes",
    "first of several nodes, with more GPUs in each",
    "second of several nodes",
    "more nodes",
]

MOST_INSIDE = 0.1
"""What a doubling inside a node lost says something of the network between nodes up to here; in published tables, a
larger loss says no more."""
FULLER: Kind = "first of several nodes, with more GPUs in each"


@dataclass(frozen=True)
class Step:
    """A step from a measured scale, the anchor, to a larger one."""

    kind: Kind
    anchor: Measured
    doublings: float  # of GPUs, nodes or GPUs per node, whichever is most
    # What each doubling of the GPUs lost, a difference of logarithms, at least 0: from the anchor to the next larger
    # measured scale, or else from the next smaller one to the anchor.
    lost_before: float
    before: float  # how many doublings that were

    @property
    def unit(self) -> float:
        """Return the size that the difference between loss and expectation is measured in."""
        return math.sqrt(self.doublings) * (0.1 + self.lost_before)


@dataclass(frozen=True)
class Losses:
    """What steps of one kind lose: see above."""

    usual: float
    kept: float
    slower: float  # >= 0 >= faster: quantiles of the loss beyond what is expected, in Step.unit
    faster: float
    most_doublings: float  # of the farthest step that enough published tables made
    tables: int  # that it is made from
    sources: int

    def of(self, step: Step) -> float:
        return step.doublings * (self.usual + self.kept * step.lost_before)


Calibration = Mapping[Kind, Losses]


@cache
def shipped() -> Calibration:
    """Return the calibration on all published tables."""
    by_kind = json.loads(CALIBRATION.read_text(encoding="utf-8"))
    return {kind: Losses(**by_kind[kind]) for kind in get_args(Kind)}


def estimate(series: MeasuredSeries, at: Scale, calibration: Calibration | None = None) -> Estimate | None:
    """Return samples per second of all GPUs of a scale, with the ends of the interval; None if it is not known.

    Not known: from one measured scale, below the smallest one, farther than published tables tell, or with an interval
    wider than ``MOST_FACTOR``. Of a measured scale its own rate, without ends if its noise is not known.
    """
    if measured := series.at(at):
        rate, noise = measured.samples_per_s, series.noise_of(measured)
        return Estimate(rate, rate * math.exp(-noise), rate * math.exp(noise)) if noise else Estimate(rate)
    step = step_to(series, at)
    if step is None:
        return None
    losses = (calibration or shipped())[step.kind]
    # The measured scales' own noise: of the anchor, and of the loss before it, which both scales bear.
    share = losses.kept * step.doublings / step.before
    noise = series.noise_of(step.anchor) * math.hypot(1 + share, share)
    slower = math.hypot(losses.slower * step.unit, noise)
    faster = math.hypot(losses.faster * step.unit, noise)
    if step.doublings > losses.most_doublings or slower + faster > math.log(MOST_FACTOR):
        return None
    rate = at.world_size / step.anchor.gpu_s_per_sample * math.exp(-losses.of(step))
    return Estimate(rate, rate * math.exp(-slower), rate * math.exp(faster))


def upper_bound(series: MeasuredSeries, at: Scale) -> float:
    """Return the samples/s of a scale if nothing is lost beyond the largest measured scale below it.

    A smaller scale than all measured ones has no bound: infinity.
    """
    below = [point for point in series.points if point.scale.world_size <= at.world_size]
    return at.world_size / below[-1].gpu_s_per_sample if below else math.inf


def step_to(series: MeasuredSeries, at: Scale) -> Step | None:
    """Return the step from the nearest smaller measured scale; None if no loss beside it was measured."""
    below = [point for point in series.points if point.scale.world_size <= at.world_size]
    above = [point for point in series.points if point.scale.world_size > at.world_size]
    if not below:
        return None
    # Of 1x2 and 2x1, the one with as many nodes as 1x4 or 4x1 has.
    anchor = max(below, key=lambda p: (p.scale.world_size, -abs(p.scale.nodes - at.nodes)))
    smaller = [point for point in below if point.scale.world_size < anchor.scale.world_size]
    beside = above[0] if above else smaller[-1] if smaller else None
    most_per_node = max(point.scale.gpus_per_node for point in series.points)
    if beside is None or (anchor.scale.nodes > 1 and at.gpus_per_node > most_per_node):
        return None
    before = abs(math.log2(anchor.scale.world_size / beside.scale.world_size))
    lost = math.log(anchor.gpu_s_per_sample / beside.gpu_s_per_sample) * (-1 if above else 1)
    kinds: tuple[tuple[bool, Kind], ...] = (
        (bool(above), "between measured scales"),
        (at.nodes == 1 and beside.scale.world_size == 1, "inside a node, after the step from one GPU"),
        (at.nodes == 1, "inside a node"),
        (anchor.scale.nodes == 1 and at.gpus_per_node > anchor.scale.gpus_per_node, FULLER),
        (anchor.scale.nodes == 1, "first of several nodes"),
        (beside.scale.nodes == 1, "second of several nodes"),
        (True, "more nodes"),
    )
    kind = next(kind for holds, kind in kinds if holds)
    nodes, gpus = at.nodes / anchor.scale.nodes, at.gpus_per_node / anchor.scale.gpus_per_node
    farthest = max(abs(math.log2(ratio)) for ratio in (nodes * gpus, nodes, gpus))
    lost_before = max(0.0, lost / before)
    if series.mode == "strong" and not above:
        lost_before *= 2  # the batch of a GPU halves, and what is communicated does not
    if kind.startswith("first"):
        lost_before = min(lost_before, MOST_INSIDE)
    return Step(kind, anchor, farthest, lost_before, before)


class Prediction(Model):
    """The throughput of all GPUs of a scale; None where it is not known.

    _low and _high: a 90 % interval; of a measured scale, the 95 % interval of its repeats, and None without any.
    """

    scale: str
    mode: Mode
    gpus: int
    samples_per_s: float | None
    samples_per_s_low: float | None
    samples_per_s_high: float | None
    samples_per_s_bound: float | None  # if it is not known: what nothing lost beyond the measured scales would give
    efficiency: float | None  # per GPU, against the baseline
    gpu_hours_per_million_samples: float | None
    baseline: str  # the smallest measured scale
    largest_measured: str
    notes: Several[str]
    doubt: str = ""  # why it may be wrong: the doubts of the figures that it is made from

    @property
    def doubt_in_words(self) -> str:
        """Return ``; in doubt, as at 1x1 the number of samples is a guess``; empty if it is not."""
        return f"; in doubt, as {self.doubt}" if self.doubt else ""

    @property
    def in_words(self) -> str:
        """Return its figures, and why they may be wrong."""
        return f"{self.figures_in_words}{self.doubt_in_words}"

    @property
    def figures_in_words(self) -> str:
        """Return ``8x2 (weak scaling): 12,300 samples/s [9,800-13,100], 84 % efficiency against 1x1``."""
        if self.samples_per_s is None:
            rate = f"at most {significant(self.samples_per_s_bound)} samples/s"
            what = f"{rate}, if nothing is lost beyond {self.largest_measured}"
        else:
            ends = interval(significant(self.samples_per_s_low), significant(self.samples_per_s_high))
            rate = f"{significant(self.samples_per_s)} samples/s {ends}"
            what = f"{rate}, {percent(self.efficiency)} efficiency against {self.baseline}"
        return f"{self.scale} ({self.mode} scaling): {what}".replace(NARROW_SPACE, " ")


def predict(series: MeasuredSeries, at: Scale) -> Prediction:
    """Return the prediction for a scale; a measured scale's own figure. Raises ValueError for an empty series."""
    if not series.points:
        raise ValueError("no scale was measured")
    rate, bound = estimate(series, at), upper_bound(series, at)
    return Prediction(
        scale=str(at),
        mode=series.mode,
        gpus=at.world_size,
        samples_per_s=rate.value if rate else None,
        samples_per_s_low=rate.low if rate else None,
        samples_per_s_high=rate.high if rate else None,
        samples_per_s_bound=None if rate or math.isinf(bound) else bound,
        efficiency=rate.value / (at.world_size / series.smallest.gpu_s_per_sample) if rate else None,
        gpu_hours_per_million_samples=at.world_size * 1e6 / 3600 / rate.value if rate else None,
        baseline=str(series.smallest.scale),
        largest_measured=str(series.largest.scale),
        notes=tuple(_notes(series, at, rate is not None)),
        doubt=series.doubt,
    )


def _notes(series: MeasuredSeries, at: Scale, is_known: bool) -> Iterator[str]:
    if series.at(at):
        yield "this scale was measured: its own figure is shown"
    elif at.world_size < series.smallest.scale.world_size:
        yield f"nothing is predicted below {series.smallest.scale}, the smallest measured scale"
    elif len(series.points) == 1:
        yield f"only {series.smallest.scale} was measured: no forecast, only an upper bound; measure a second scale"
    elif not is_known:
        yield "not known from these scales: only an upper bound; measure a scale in between"
    if at.nodes > 1 and all(point.scale.nodes == 1 for point in series.points):
        yield "crosses a node boundary that was not measured: measure two nodes to know what the network costs"
    least_s = series.smallest.gpu_s_per_sample / MOST_EFFICIENCY
    if too_fast := ", ".join(str(point.scale) for point in series.points if point.gpu_s_per_sample < least_s):
        yield f"efficiency above {100 * MOST_EFFICIENCY:.0f} % at {too_fast}: do all scales run the same program?"


def outlooks(plan: Plan, points: Sequence[ScalePoint]) -> tuple[Prediction, ...]:
    """Return the prediction for twice the nodes of the largest scale, in each mode with enough measured scales.

    Of the reference variant, or else of the first one. In strong mode each GPU needs a sample of the global batch.
    """
    names = [run.variant for run in plan.runs if not run.is_plain]
    variant = REFERENCE_VARIANT if REFERENCE_VARIANT in names or not names else names[0]
    predictions = []
    for mode in dict.fromkeys(run.mode for run in plan.runs):
        series = series_of(points, variant, mode)
        if len(series.points) < LEAST_SCALES:
            continue
        largest = series.largest.scale
        at = Scale(2 * largest.nodes, largest.gpus_per_node)
        run = next(run for run in plan.runs if (run.mode, run.variant) == (mode, variant))
        least = run.batch_per_gpu if run.accumulation else 1  # samples of a GPU
        if mode == "weak" or at.world_size * least <= run.global_batch:
            predictions.append(predict(series, at))
    return tuple(predictions)


def read_series(file: Path, variant: str | None = None) -> tuple[MeasuredSeries, ...]:
    """Return the series of each mode in a CSV file, weak first. Several rows of one scale are repeats.

    variant: without one, "default", or the only variant there is. Scales that failed, were not measured, or do not
    compare with the first one are left out. Raises UserError.
    """
    rows = list(_rows(file))
    names = list(dict.fromkeys(row.variant for row in rows if row.variant != PLAIN_VARIANT))
    chosen = variant or (REFERENCE_VARIANT if REFERENCE_VARIANT in names or len(names) != 1 else names[0])
    if chosen not in names:
        what = f"{file} has no such variant that was measured"
        raise UserError(Problem("--variant", what, found=chosen, allowed=", ".join(names)))
    measured = tuple(series for mode in get_args(Mode) if (series := series_of(rows, chosen, mode)).points)
    if not measured:
        states = ", ".join(dict.fromkeys(row.status for row in rows))
        raise UserError(Problem(f"{file}: status", "no scale counts", found=states, allowed=", ".join(COUNTED)))
    return measured


def _rows(file: Path) -> Iterator[TableRow]:
    """Yield each row with a measured scale; in a table of the report, some have no samples_per_s."""
    where = str(file)
    try:
        lines = csv.DictReader(file.read_text(encoding="utf-8-sig").splitlines(), skipinitialspace=True)
        if not lines.fieldnames:
            raise ValueError("it is empty")
        for cells in lines:
            where = f"{file}, line {lines.line_num}"
            if None in cells or None in cells.values():
                raise ValueError("the number of cells is not that of the header")
            if "variant" not in cells or (cells.get("samples_per_s") and cells.get("status") != "failed"):
                yield TableRow.from_json({key: text for key, text in cells.items() if text})
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(Problem(where, f"this is no table of scales: {error}", allowed=NEEDED)) from None


def scale_of(text: str) -> Scale:
    """Return the scale of --at, written as nodes x GPUs per node. Raises UserError."""
    if re.fullmatch(r"[0-9]{1,6}x[0-9]{1,3}", text):
        scale = Scale.parse(text)
        if 1 <= scale.nodes <= MOST_NODES and 1 <= scale.gpus_per_node <= MOST_GPUS:
            return scale
    allowed = f"nodes x GPUs per node, at most {MOST_NODES}x{MOST_GPUS}: 8x4 for 8 nodes with 4 GPUs each"
    raise UserError(Problem("--at", "not a scale", found=text, allowed=allowed))


# --- The forecast of a stage. It is frozen when its first run succeeds: its error would say nothing otherwise.


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
