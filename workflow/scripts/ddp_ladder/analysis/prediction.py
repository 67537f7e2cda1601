"""Prediction of the throughput at a scale that was not measured, with a 90 % interval, or None where nothing is known.

The figure is the time that one GPU spends on each of its samples; its growth is the loss. A step from the nearest
smaller measured scale over d doublings of the GPUs loses, as a logarithm,

    d (usual + kept x what each doubling before it lost)

``usual`` and ``kept``, and the quantiles of what published tables lost more or less than that, are in calibration.json,
by kind of step; benchmarks/prediction.py writes it, and benchmarks/results/prediction.md shows how well it holds.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from ddp_ladder.common.formats import NARROW_SPACE, interval, percent, significant
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.model import Model, Several
from ddp_ladder.gates.interval import WIDEST, Estimate, factor, in_doubt
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.measuring.statistic import median
from ddp_ladder.plan.plan import Plan
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
