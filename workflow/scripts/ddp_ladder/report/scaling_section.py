"""The report's tables of the other baselines and of the cost, and the scales that stand out, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ddp_ladder.analysis.cost import Pick, Work, picks
from ddp_ladder.common.formats import capitalised, duration, full_stop
from ddp_ladder.gates.figures import (
    AGAINST_NODE,
    AGAINST_SMALLEST,
    EFFICIENCY,
    GPU_HOURS,
    GPU_HOURS_TO_SOLUTION,
    SAMPLES_PER_S,
    Column,
    columns,
)
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import not_comparable
from ddp_ladder.report.view import ReportView
from ddp_ladder.settings.terms import REFERENCE_VARIANT, Scale


@dataclass(frozen=True)
class Cell:
    """A figure, and its interval or why there is none."""

    text: str
    mark: str = ""


@dataclass(frozen=True)
class ScalingTable:
    """A table with a row for each measured scale. headings: key, heading, unit of each column."""

    kind: str
    title: str
    headings: tuple[tuple[str, str, str], ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


@dataclass(frozen=True)
class ScalingSection:
    """Both tables, and notes on them; empty while nothing has been measured."""

    tables: tuple[ScalingTable, ...]
    notes: tuple[str, ...]


def scaling_section(view: ReportView) -> ScalingSection:
    """Return the tables and what stands out in each mode and variant."""
    points = [point for point in view.rungs if point.samples_per_s is not None]
    if not points:
        return ScalingSection((), ())
    work, modes = view.results.work, tuple(dict.fromkeys(point.mode for point in points))
    tables: list[ScalingTable] = []
    for mode in modes:
        own = [point for point in points if point.mode == mode]
        ending = f", {mode} scaling" if len(modes) > 1 else ""
        costs = [column for column in columns("cost") if _is_known(column, own)]
        tables.append(_table("baselines", f"Against other baselines{ending}", _baseline_columns(own), own))
        tables.append(_table("cost", f"Cost{ending}", costs, own))
    notes = [line for mode in modes for line in _stand_out([p for p in points if p.mode == mode], view)]
    return ScalingSection(tuple(tables), tuple(notes + ([work.missing] if work.missing else [])))


def _is_known(column: Column, points: Sequence[ScalePoint]) -> bool:
    return any(getattr(point, column.key) is not None for point in points)


def _baseline_columns(points: Sequence[ScalePoint]) -> list[Column]:
    """Return the columns of the baselines that differ from each other, efficiency against the first scale first."""
    left_out: tuple[str, ...] = ()
    if not any(point.node_baseline not in ("", point.baseline) or point.node_obstacle for point in points):
        left_out += ("_node",)
    if not any(_has_own_smallest(point) for point in points):
        left_out += ("_smallest",)
    shown = [each for each in columns("baselines") if _is_known(each, points) or each.key == AGAINST_NODE.key]
    heading = f"efficiency against {points[0].baseline_in_words}"
    first = replace(EFFICIENCY, heading=heading, text=AGAINST_SMALLEST.text)
    return [first, *(column for column in shown if not column.key.endswith(left_out))]


def _has_own_smallest(point: ScalePoint) -> bool:
    """Return True if the smallest scale that compares is none of the other baselines."""
    return point.smallest_baseline not in ("", point.baseline, str(point.scale), point.node_baseline)


def _table(kind: str, title: str, shown: Sequence[Column], points: Sequence[ScalePoint]) -> ScalingTable:
    several = len({point.variant for point in points}) > 1
    rows = [
        (f"{point.scale} {point.variant}" if several else str(point.scale), tuple(_cell(c, point, kind) for c in shown))
        for point in points
    ]
    return ScalingTable(kind, title, tuple((each.key, each.heading, each.unit) for each in shown), tuple(rows))


def _cell(column: Column, point: ScalePoint, kind: str) -> Cell:
    if getattr(point, column.key) is None:
        return Cell(column.shown(point), _why_not(column, point))
    with_interval = column.key == EFFICIENCY.key or kind in column.interval_in
    baselines = {AGAINST_NODE.key: point.node_baseline, AGAINST_SMALLEST.key: point.smallest_baseline}
    against = f"vs {baselines[column.key]}" if column.key in baselines else ""
    return Cell(column.shown(point), " ".join(filter(None, (column.interval(point) if with_interval else "", against))))


def _why_not(column: Column, point: ScalePoint) -> str:
    if column.key == EFFICIENCY.key and point.differing:
        return not_comparable(point.differing)
    return point.node_obstacle if column.key == AGAINST_NODE.key else ""


def _stand_out(points: Sequence[ScalePoint], view: ReportView) -> Iterator[str]:
    """Yield a sentence for each scale of a mode that stands out, of the reference variant or else of the first."""
    names = [point.variant for point in points]
    variant = REFERENCE_VARIANT if REFERENCE_VARIANT in names else names[0]
    chosen: dict[Scale, list[Pick]] = {}
    for pick in picks([point for point in points if point.variant == variant], view.thresholds):
        chosen.setdefault(pick.point.scale, []).append(pick)
    for picked in chosen.values():
        point = picked[0].point
        kinds = capitalised(" and ".join(pick.kind for pick in picked))
        rules = view.of_device("; ".join(pick.rule for pick in picked))
        yield f"{kinds}: {view.place(point)} ({rules}): {full_stop(', '.join(_figures(point, view)))}"


def _figures(point: ScalePoint, view: ReportView) -> Iterator[str]:
    yield f"{SAMPLES_PER_S.shown(point)} {SAMPLES_PER_S.heading}"
    if point.smallest_baseline != str(point.scale):
        column = AGAINST_SMALLEST if point.efficiency is None else EFFICIENCY
        yield f"efficiency {column.shown(point)} {column.interval(point)}".rstrip()
    yield f"{GPU_HOURS.shown(point)} {view.of_device(GPU_HOURS.heading)}"
    if point.hours_to_solution is not None:
        hours = f"{GPU_HOURS_TO_SOLUTION.shown(point)} {view.unit} h"
        yield f"{_training(view.results.work)} take {duration(3600 * point.hours_to_solution)} ({hours})"
    elif point.hours_per_epoch is not None and 3600 * point.hours_per_epoch >= 1:  # a shorter one is no cost
        yield f"an epoch takes {duration(3600 * point.hours_per_epoch)}"


def _training(work: Work) -> str:
    return f"{work.samples:,.0f} samples" if work.samples is not None else f"{work.epochs:g} epochs"
