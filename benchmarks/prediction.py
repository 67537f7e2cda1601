"""How well predictions hold on published scaling tables: docs/prediction.md, and the constants of the intervals.

    python benchmarks/prediction.py                # write the tables of docs/prediction.md, print a summary
    python benchmarks/prediction.py --calibrate    # find the constants of analysis/estimate.py, and check them

Each table of tests/published_scaling*.csv is cut after its first scales, and its later ones are predicted.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
from scipy.optimize import linprog

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "workflow/scripts")]

from ddp_ladder.analysis.estimate import Distance, Estimate, Width, estimate, extrapolated  # noqa: E402
from ddp_ladder.analysis.forms import fitted_forms  # noqa: E402
from ddp_ladder.analysis.measured import Measured, Series, doublings  # noqa: E402
from ddp_ladder.settings.terms import Mode, Scale  # noqa: E402

TABLES = ROOT / "tests/published_scaling.csv"
HELD_OUT = ROOT / "tests/published_scaling_held_out.csv"  # neither forms nor constants were chosen with these
DOC = ROOT / "docs/prediction.md"
BEGIN, END = "<!-- written by benchmarks/prediction.py -->", "<!-- end -->"
Cut = Callable[[Sequence["Table"]], list["Case"]]
TAIL = 0.05  # each side of an interval is to miss as many


@dataclass(frozen=True)
class Table:
    """A published table of one program on one machine."""

    source: str
    date: str
    url: str
    model: str
    hardware: str
    series: Series


@dataclass(frozen=True)
class Case:
    """A table cut after its first scales, and a later scale."""

    table: Table
    known: Series
    later: Measured

    @property
    def is_next(self) -> bool:
        """Return True for at most twice the largest known scale."""
        return doublings(self.known.largest.scale, self.later.scale) < 1.01

    @property
    def is_first_of_several_nodes(self) -> bool:
        """Return True if no known scale has several nodes."""
        return self.later.scale.nodes > 1 and all(point.scale.nodes == 1 for point in self.known.points)

    @cached_property
    def found(self) -> Estimate:
        return estimate(self.known, self.later.scale)

    def error(self) -> float:
        """Return predicted / published - 1."""
        return self.found.samples_per_s / self.later.samples_per_s - 1

    def is_covered(self) -> bool:
        """Return True if the published figure lies in the interval."""
        return self.found.low <= self.later.samples_per_s <= self.found.high

    def width(self) -> float:
        """Return the whole interval, relative to the prediction."""
        return (self.found.high - self.found.low) / self.found.samples_per_s


def read_tables(file: Path = TABLES) -> tuple[Table, ...]:
    """Return the tables, in the file's order."""
    figures: dict[tuple[str, ...], list[tuple[Scale, float]]] = defaultdict(list)
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            key = tuple(row[name] for name in ("source", "date", "url", "model", "hardware", "mode"))
            scale = Scale(int(row["nodes"]), int(row["gpus_per_node"]))
            figures[key].append((scale, float(row["samples_per_s"])))
    tables = []
    for (source, date, url, model, hardware, mode), found in figures.items():
        tables.append(Table(source, date, url, model, hardware, Series.of(cast(Mode, mode), found)))
    return tuple(tables)


def cut(table: Table, count: int, later: int = -1) -> Case:
    """Return a case with the table's first scales known, and its last one, or another, to predict."""
    points = table.series.points
    return Case(table, Series(table.series.mode, points[:count]), points[later])


def largest_from_all_others(tables: Sequence[Table]) -> list[Case]:
    """Return a case per table: the largest scale from all smaller ones."""
    return [cut(table, len(table.series.points) - 1) for table in tables]


def largest_from_half(tables: Sequence[Table]) -> list[Case]:
    """Return a case per table: the largest scale from those of at most half its GPUs."""
    return [cut(table, sum(_times(table, index) >= 2 for index in range(len(table.series.points)))) for table in tables]


def largest_from_quarter(tables: Sequence[Table]) -> list[Case]:
    """Return a case per table that has two scales of at most a quarter of its GPUs."""
    counts = [(table, sum(_times(table, index) >= 4 for index in range(len(table.series.points)))) for table in tables]
    return [cut(table, count) for table, count in counts if count >= 2]


def largest_from_three(tables: Sequence[Table]) -> list[Case]:
    """Return a case per table: the largest scale from the three smallest ones."""
    return [cut(table, 3) for table in tables]


def first_of_several_nodes(tables: Sequence[Table]) -> list[Case]:
    """Return a case per table that begins with two scales of one node: its first scale of several nodes."""
    found = []
    for table in tables:
        inside = sum(point.scale.nodes == 1 for point in table.series.points)
        if 2 <= inside < len(table.series.points):
            found.append(cut(table, inside, inside))
    return found


def _times(table: Table, index: int) -> float:
    points = table.series.points
    return points[-1].scale.world_size / points[index].scale.world_size


def all_cases(tables: Sequence[Table], fewest: int = 2) -> Iterator[Case]:
    """Yield each table cut at each place, with each later scale."""
    for table in tables:
        for count in range(fewest, len(table.series.points)):
            for later in range(count, len(table.series.points)):
                yield cut(table, count, later)


# Calibration


def weights(cases: Sequence[Case]) -> np.ndarray:
    """Return a weight per case: a table counts once, and a source with n tables as the square root of n."""
    tables: dict[str, set[Table]] = defaultdict(set)
    cuts: dict[Table, int] = defaultdict(int)
    for case in cases:
        tables[case.table.source].add(case.table)
        cuts[case.table] += 1
    return np.array([1 / cuts[case.table] / math.sqrt(len(tables[case.table.source])) for case in cases])


@dataclass(frozen=True)
class Seen:
    """A case with the distance of its later scale, and log(published / mean of the forms)."""

    case: Case
    distance: Distance
    log_error: float


def seen(case: Case) -> Seen:
    """Return the case without a new level's loss."""
    time, distance = extrapolated(case.known, case.later.scale)
    return Seen(case, distance, math.log(time / case.later.gpu_s_per_sample))


def quantile_fit(rows: np.ndarray, values: np.ndarray, weight: np.ndarray, tail: float = TAIL) -> np.ndarray:
    """Return coefficients of at least 0 of a linear quantile regression."""
    count, columns = rows.shape
    cost = np.concatenate([np.zeros(columns), weight * (1 - tail), weight * tail])
    equal = np.hstack([rows, np.eye(count), -np.eye(count)])
    return np.asarray(linprog(cost, A_eq=equal, b_eq=values, bounds=(0, None), method="highs").x[:columns])


def calibrated(found: Sequence[Seen], sign: int, loss: float) -> Width:
    """Return the constants of one side: -1 for slower than predicted, 1 for faster."""
    inside = [each for each in found if not each.distance.is_new_level]
    rows = np.array([(each.distance.doublings, each.distance.spread, each.distance.residual) for each in inside])
    misses = np.array([max(0.0, sign * each.log_error) for each in inside])
    known = quantile_fit(rows, misses, weights([each.case for each in inside]))
    per_doubling, of_spread, of_residual = (float(value) for value in known)
    width = Width(per_doubling, of_spread, of_residual, of_new_level=0.0)
    new = [each for each in found if each.distance.is_new_level]
    beyond = [max(0.0, sign * (each.log_error + loss) - width.of(each.distance)) for each in new]
    weight = weights([each.case for each in new])
    extra = float(quantile_fit(np.ones((len(new), 1)), np.array(beyond), weight)[0])
    return replace(width, of_new_level=extra)


def loss_of_new_level(found: Sequence[Seen]) -> float:
    """Return the median over sources of the median loss at the first scale of several nodes, beyond the forms."""
    losses: dict[str, list[float]] = defaultdict(list)
    for each in found:
        if each.distance.is_new_level and each.case.is_next:
            losses[each.case.table.source].append(-each.log_error)
    return max(0.0, statistics.median(statistics.median(values) for values in losses.values()))


def from_one(tables: Sequence[Table]) -> tuple[float, float]:
    """Return half the interval per doubling, slower and faster, if only the smallest scale is known."""
    cases = [cut(table, 1, later) for table in tables for later in range(1, len(table.series.points))]
    doubled = np.array([[max(1.0, doublings(case.known.largest.scale, case.later.scale))] for case in cases])
    logs = [math.log(case.known.largest.gpu_s_per_sample / case.later.gpu_s_per_sample) for case in cases]
    sides = (quantile_fit(doubled, np.maximum(0, sign * np.array(logs)), weights(cases)) for sign in (-1, 1))
    slower, faster = (float(side[0]) for side in sides)
    return slower, faster


def calibrate(tables: Sequence[Table]) -> None:
    """Print the constants, and how often intervals hold for a source that their constants were found without."""
    found = [seen(case) for case in all_cases(tables)]
    loss = loss_of_new_level(found)
    print(f"LOSS_OF_NEW_LEVEL = {loss:.3f}")
    print("SLOWER =", calibrated(found, -1, loss))
    print("FASTER =", calibrated(found, 1, loss))
    print("SLOWER_FROM_ONE, FASTER_FROM_ONE = {:.3f}, {:.3f}".format(*from_one(tables)))
    covered = covered_without_own_source(tables)
    for source, held in covered.items():
        print(f"  without {source}: {statistics.mean(held):.0%} of its {len(held)} cases are in the interval")
    print(f"  all: {statistics.mean(one for held in covered.values() for one in held):.0%}")


def covered_without_own_source(tables: Sequence[Table]) -> dict[str, list[bool]]:
    """Return by source whether each case is in the interval, with constants found from the other sources alone."""
    found = [seen(case) for case in all_cases(tables)]
    covered = {}
    for source in dict.fromkeys(table.source for table in tables):
        others = [each for each in found if each.case.table.source != source]
        loss = loss_of_new_level(others)
        sides = [(sign, calibrated(others, sign, loss)) for sign in (-1, 1)]
        covered[source] = [_holds(each, sides, loss) for each in found if each.case.table.source == source]
    return covered


def _holds(each: Seen, sides: Sequence[tuple[int, Width]], loss: float) -> bool:
    error = each.log_error + (loss if each.distance.is_new_level else 0.0)
    return all(sign * error <= width.of(each.distance) for sign, width in sides)


# The page

TESTS: tuple[tuple[str, Cut], ...] = (
    ("the largest scale, from all smaller ones", largest_from_all_others),
    ("the largest scale, from those of at most half its GPUs", largest_from_half),
    ("the largest scale, from the three smallest ones", largest_from_three),
    ("the largest scale, from those of at most a quarter of its GPUs", largest_from_quarter),
    ("the first scale of several nodes, from one node", first_of_several_nodes),
)


@dataclass(frozen=True)
class Score:
    """Relative errors of several cases, and how often their interval holds."""

    cases: int
    median_error: float
    large_error: float
    median_signed: float
    covered: float
    median_width: float

    @classmethod
    def of(cls, cases: Sequence[Case]) -> Score:
        errors = [case.error() for case in cases]
        sizes = [abs(error) for error in errors]
        return cls(
            cases=len(cases),
            median_error=statistics.median(sizes),
            large_error=float(np.quantile(sizes, 0.9)),
            median_signed=statistics.median(errors),
            covered=statistics.mean(case.is_covered() for case in cases),
            median_width=statistics.median(case.width() for case in cases),
        )


def page(tables: Sequence[Table]) -> str:
    """Return what is written into docs/prediction.md, as Markdown."""
    known = largest_from_all_others(tables)
    parts = (
        summary(tables),
        "The same with the tables that were held out:",
        summary(read_tables(HELD_OUT)),
        "### Each form alone\n\nThe largest scale, from all smaller ones:\n\n" + _forms(known),
        "### By source\n\nThe largest scale, from all smaller ones:\n\n" + _sources(tables),
        "## Each table\n\nThe largest scale, from all smaller ones:\n\n" + _each(known),
    )
    return "\n\n".join(parts)


def summary(tables: Sequence[Table]) -> str:
    """Return the page's first table: the errors of each kind of cut."""
    rows = []
    for name, make in TESTS:
        score = Score.of(make(tables))
        rows.append((name, str(score.cases), *_score(score)))
    return _markdown(("predicted", "cases", *_SCORE), rows)


_SCORE = (
    "median error",
    "90 % of errors below",
    "median of predicted / published - 1",
    "in the interval",
    "median width",
)


def _score(score: Score) -> tuple[str, ...]:
    return (
        f"{score.median_error:.1%}",
        f"{score.large_error:.0%}",
        f"{score.median_signed:+.1%}",
        f"{score.covered:.0%}",
        f"{score.median_width:.0%}",
    )


def _forms(cases: Sequence[Case]) -> str:
    errors: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        scale = case.later.scale
        for name, form in fitted_forms(case.known.points, scale).items():
            errors[name].append(case.later.gpu_s_per_sample / form.gpu_s_per_sample(scale) - 1)
        errors["the prediction"].append(case.error())
    rows = [
        (
            name,
            f"{statistics.median(map(abs, values)):.1%}",
            f"{np.quantile(np.abs(values), 0.9):.0%}",
            f"{statistics.median(values):+.1%}",
        )
        for name, values in errors.items()
    ]
    return _markdown(("form", *_SCORE[:3]), rows)


def _sources(tables: Sequence[Table]) -> str:
    rows = []
    for source in dict.fromkeys(table.source for table in tables):
        own = [table for table in tables if table.source == source]
        score = Score.of(largest_from_all_others(own))
        links = dict.fromkeys(table.url for table in own)
        dates = sorted({table.date for table in own})
        period = (dates[0] or "none") if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        pages = ", ".join(f"[{number}]({url})" for number, url in enumerate(links, start=1))
        rows.append((source, pages, period, str(len(own)), *_score(score)))
    return _markdown(("source", "pages", "date", "tables", *_SCORE), rows)


def _each(cases: Sequence[Case]) -> str:
    rows = []
    for case in cases:
        found = case.found
        rows.append(
            (
                f"[{case.table.model}]({case.table.url}), {case.table.hardware}",
                case.table.series.mode,
                " ".join(str(point.scale) for point in case.known.points),
                str(case.later.scale),
                f"{case.later.samples_per_s:,.6g}",
                f"{found.samples_per_s:,.4g}",
                f"{found.low:,.4g} to {found.high:,.4g}",
                f"{case.error():+.1%}" + ("" if case.is_covered() else " (outside)"),
            )
        )
    header = ("table", "mode", "known", "predicted", "published samples/s", "predicted samples/s", "interval", "error")
    return _markdown(header, rows)


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return re.sub(r"(\d)%", r"\1 %", text)


def main() -> None:
    """Write the page's tables, or print the constants."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calibrate", action="store_true", help="print the constants of the intervals instead")
    tables = read_tables()
    if parser.parse_args().calibrate:
        calibrate(tables)
        return
    before, _, rest = DOC.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    DOC.write_text(f"{before}{BEGIN}\n\n{page(tables)}\n\n{END}{after}")
    print(summary(tables))
    print(f"written: {DOC}")


if __name__ == "__main__":
    main()
