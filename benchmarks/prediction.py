"""Calibrate the prediction on published scaling tables, and measure how well it holds: results/prediction.md.

    python benchmarks/prediction.py    # writes analysis/calibration.json and the tables of its page

Each table of tests/published_scaling.csv is cut after its first scales, and later ones are predicted with a calibration
made without its source.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import cast, get_args

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "workflow/scripts")]

from ddp_ladder.analysis.prediction import (  # noqa: E402
    CALIBRATION,
    Calibration,
    Kind,
    Losses,
    Measured,
    MeasuredSeries,
    Step,
    estimate,
    step_to,
)
from ddp_ladder.settings.terms import Mode, Scale  # noqa: E402

TABLES = ROOT / "tests/published_scaling.csv"
DOC = ROOT / "benchmarks/results/prediction.md"
BEGIN, END = "<!-- written by benchmarks/prediction.py -->", "<!-- end -->"
TAIL = 0.04
"""Share of the known losses beyond each end of an interval: less than 5 %, because a source that is not among them
differs more."""
LEAST_SOURCES = 8
"""A step is predicted as far as that many sources have made one."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """A published table of one program on one machine."""

    source: str
    url: str
    model: str
    hardware: str
    series: MeasuredSeries


@dataclass(frozen=True)
class Case:
    """Scales of a table, and a later one to predict from them."""

    table: Table
    known: MeasuredSeries
    later: Measured

    def ratio(self, samples_per_s: float) -> float:
        """Return predicted / published."""
        return samples_per_s / self.later.samples_per_s


def read_tables(file: Path = TABLES) -> tuple[Table, ...]:
    """Return the tables, in the file's order."""
    figures: dict[tuple[str, ...], list[tuple[Scale, float]]] = defaultdict(list)
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            key = tuple(row[name] for name in ("source", "date", "url", "model", "hardware", "mode"))
            scale = Scale(int(row["nodes"]), int(row["gpus_per_node"]))
            figures[key].append((scale, float(row["samples_per_s"])))
    return tuple(
        Table(source, url, model, hardware, MeasuredSeries.of(cast(Mode, mode), found))
        for (source, _, url, model, hardware, mode), found in figures.items()
    )


# The cuts


def cut(table: Table, count: int, later: int = -1) -> Case:
    """Return a case with the table's first scales known, and its last one, or another, to predict."""
    points = table.series.points
    return Case(table, MeasuredSeries(table.series.mode, points[:count]), points[later])


def largest_from_all(tables: Sequence[Table]) -> list[Case]:
    """Return a case per table: the largest scale from all smaller ones."""
    return [cut(table, len(table.series.points) - 1) for table in tables]


def largest_from(part: int) -> Callable[[Sequence[Table]], list[Case]]:
    """Return the cut: the largest scale from those of at most 1/part of its GPUs, if they are two or more."""

    def cases(tables: Sequence[Table]) -> list[Case]:
        found = [(table, [p.scale.world_size for p in table.series.points]) for table in tables]
        counts = [(table, sum(gpus * part <= sizes[-1] for gpus in sizes)) for table, sizes in found]
        return [cut(table, count) for table, count in counts if count >= 2]

    return cases


def first_of_several_nodes(tables: Sequence[Table]) -> list[Case]:
    """Return a case per table that begins with two scales of one node: its first scale of several nodes."""
    counts = [(table, _inside(table)) for table in tables]
    return [cut(table, count, count) for table, count in counts if 2 <= count < len(table.series.points)]


def inside_a_node(tables: Sequence[Table]) -> list[Case]:
    """Return a case per table with three scales of one node: the last of them from those before."""
    counts = [(table, _inside(table)) for table in tables]
    return [cut(table, count - 1, count - 1) for table, count in counts if count >= 3]


def largest_from_two(tables: Sequence[Table]) -> list[Case]:
    """Return a case per table: the largest scale from the two smallest ones."""
    return [cut(table, 2) for table in tables]


def _inside(table: Table) -> int:
    return sum(point.scale.nodes == 1 for point in table.series.points)


CUTS: dict[str, Callable[[Sequence[Table]], list[Case]]] = {
    "the largest scale, from all smaller ones": largest_from_all,
    "the largest scale, from half of its GPUs or fewer": largest_from(2),
    "the largest scale, from a quarter of its GPUs or fewer": largest_from(4),
    "the first scale of several nodes, from one node": first_of_several_nodes,
    "the largest scale of one node, from smaller ones": inside_a_node,
    "the largest scale, from the two smallest": largest_from_two,
}


# The calibration


@dataclass(frozen=True)
class Seen:
    """A step in a published table, and what it lost."""

    table: Table
    step: Step
    loss: float


@cache
def all_seen(tables: tuple[Table, ...]) -> tuple[Seen, ...]:
    """Return each step that the tables hold: cut at each place, to each later scale, and over each middle scale."""
    return tuple(_seen(tables))


def _seen(tables: Sequence[Table]) -> Iterator[Seen]:
    for table in tables:
        points = table.series.points
        for count in range(2, len(points)):
            known = [(points[:count], later) for later in points[count:]]
            known.append(((*points[: count - 1], *points[count:]), points[count - 1]))
            for those, later in known:
                step = step_to(MeasuredSeries(table.series.mode, those), later.scale)
                if step and step.doublings:
                    yield Seen(table, step, math.log(later.gpu_s_per_sample / step.anchor.gpu_s_per_sample))


def weights(tables: Sequence[Table]) -> Array:
    """Return a weight per case: each table counts once, and a source with n tables as the square root of n."""
    cases: dict[Table, int] = defaultdict(int)
    of_source: dict[str, set[Table]] = defaultdict(set)
    for table in tables:
        cases[table] += 1
        of_source[table.source].add(table)
    return np.array([1 / cases[table] / math.sqrt(len(of_source[table.source])) for table in tables])


def quantile(values: Array, weight: Array, at: float) -> float:
    """Return a weighted quantile."""
    order = np.argsort(values)
    places = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    return float(np.interp(at, places, values[order]))


def calibrate(tables: Sequence[Table], without: str = "") -> Calibration:
    """Return the calibration on all tables but those of one source.

    The quantiles are of residuals that each source has with losses found without it.
    """
    every = [each for each in all_seen(tuple(tables)) if each.table.source != without]
    return {kind: _losses([each for each in every if each.step.kind == kind]) for kind in get_args(Kind)}


def _losses(seen: Sequence[Seen]) -> Losses:
    sources = np.array([each.table.source for each in seen])
    rows = np.array([(each.step.doublings, each.step.doublings * each.step.lost_before) for each in seen])
    losses = np.array([each.loss for each in seen])
    units = np.array([each.step.unit for each in seen])
    weight = weights([each.table for each in seen])
    residuals = np.zeros(len(seen))
    for source in np.unique(sources):
        own = sources == source
        found = least_errors(rows[~own], losses[~own], weight[~own])
        residuals[own] = (losses[own] - rows[own] @ found) / units[own]
    usual, kept = least_errors(rows, losses, weight)
    count = len(set(sources))
    farthest = sorted((rows[sources == source, 0].max() for source in np.unique(sources)), reverse=True)
    return Losses(
        usual=round(float(usual), 4),
        kept=round(float(kept), 3),
        slower=round(max(0.0, quantile(residuals, weight, 1 - TAIL)), 3),
        faster=round(min(0.0, quantile(residuals, weight, TAIL)), 3),
        most_doublings=round(float(farthest[min(LEAST_SOURCES, len(farthest)) - 1]), 3),
        tables=len({each.table for each in seen}),
        sources=count,
    )


def least_errors(rows: Array, losses: Array, weight: Array) -> Array:
    """Return the factors >= 0 with the least sum of |predicted / published - 1|, by reweighted least squares."""
    found = np.zeros(rows.shape[1])
    for _ in range(60):
        missed = np.clip(losses - rows @ found, -2, 2)
        scaled = rows * (weight * np.abs(np.expm1(missed)) / np.maximum(missed**2, 1e-4))[:, None]
        found = np.maximum(0, np.linalg.lstsq(rows.T @ scaled, scaled.T @ losses)[0])
    return cast(Array, found)


def without_own_source(tables: Sequence[Table]) -> dict[str, Calibration]:
    """Return by source the calibration on all others."""
    return {source: calibrate(tables, source) for source in dict.fromkeys(table.source for table in tables)}


# What others would predict


def same_efficiency(known: MeasuredSeries, at: Scale) -> float:
    """Return the rate at the efficiency of the largest known scale."""
    return at.world_size / known.largest.gpu_s_per_sample


def power_law(known: MeasuredSeries, at: Scale) -> float:
    """Return the rate by the power law through the two largest known scales."""
    last = known.largest
    before = [point for point in known.points if point.scale.world_size < last.scale.world_size][-1]
    power = math.log(last.samples_per_s / before.samples_per_s) / math.log(
        last.scale.world_size / before.scale.world_size
    )
    return last.samples_per_s * (at.world_size / last.scale.world_size) ** power


METHODS: dict[str, Callable[[MeasuredSeries, Scale], float]] = {
    "power law": power_law,
    "same efficiency": same_efficiency,
}
OURS = "ours"


@dataclass(frozen=True)
class Score:
    """A kind of cut. errors: by method, median and 90th percentile of |predicted / published - 1| of the known cases.

    known: share of the cases that are predicted. inside: of these, in the interval. factor: median of its high / low.
    """

    cases: int
    known: float
    inside: float
    factor: float
    errors: dict[str, tuple[float, float]]

    @classmethod
    def of(cls, cases: Sequence[Case], calibrations: dict[str, Calibration]) -> Score:
        """Score the cases, each with the calibration found without its source."""
        made = [(case, estimate(case.known, case.later.scale, calibrations[case.table.source])) for case in cases]
        found = [(case, one.value, one.low or 0.0, one.high or math.inf) for case, one in made if one]
        weight = weights([case.table for case, *_ in found])
        inside = [low <= case.later.samples_per_s <= high for case, _, low, high in found]
        ratios = {OURS: [case.ratio(rate) for case, rate, *_ in found]}
        for name, method in METHODS.items():
            ratios[name] = [case.ratio(method(case.known, case.later.scale)) for case, *_ in found]
        errors = {name: np.abs(np.array(values) - 1) for name, values in ratios.items()}
        return cls(
            cases=len(cases),
            known=len(found) / len(cases),
            inside=float(np.average(inside, weights=weight)),
            factor=quantile(np.array([high / low for *_, low, high in found]), weight, 0.5),
            errors={name: (quantile(e, weight, 0.5), quantile(e, weight, 0.9)) for name, e in errors.items()},
        )


def scores(tables: Sequence[Table]) -> dict[str, Score]:
    """Return the score of each kind of cut."""
    calibrations = without_own_source(tables)
    return {name: Score.of(make(tables), calibrations) for name, make in CUTS.items()}


# The page


def page(tables: Sequence[Table]) -> str:
    """Return what is written into the page, as Markdown."""
    parts = (results(scores(tables)), _losses_found(calibrate(tables)), _sources(tables))
    return "\n\n".join(parts)


def results(found: dict[str, Score]) -> str:
    """Return the page's first table."""
    rows = []
    for name, score in found.items():
        errors = (f"{median:.1%} / {tail:.0%}" for median, tail in score.errors.values())
        rows.append(
            (name, str(score.cases), f"{score.known:.0%}", f"{score.inside:.0%}", f"{score.factor:.2f}", *errors)
        )
    header = (
        "predicted",
        "tables",
        "known",
        "inside",
        "interval: high / low",
        *(f"error: {name}" for name in (OURS, *METHODS)),
    )
    return _markdown(header, rows)


def _losses_found(found: Calibration) -> str:
    rows = [
        (
            kind,
            f"{one.usual:.1%}",
            f"{one.kept:.2f}",
            f"{2**one.most_doublings:.3g} times the GPUs",
            f"{one.tables} from {one.sources}",
        )
        for kind, one in found.items()
    ]
    return _markdown(("step", "usual loss", "share of the loss before", "known up to", "tables, sources"), rows)


def _sources(tables: Sequence[Table]) -> str:
    count = len({table.source for table in tables})
    return (
        f"The {len(tables)} tables are from {count} sources; `tests/published_scaling.csv` has figures and addresses."
    )


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return re.sub(r"(\d)%", r"\1 %", text)


def main() -> None:
    """Write the calibration and the page's tables."""
    tables = read_tables()
    found = {kind: asdict(losses) for kind, losses in calibrate(tables).items()}
    CALIBRATION.write_text(json.dumps(found, indent=2) + "\n")
    before, _, rest = DOC.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    text = page(tables)
    DOC.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
    print(text)
    print(f"written: {CALIBRATION}, {DOC}")


if __name__ == "__main__":
    main()
