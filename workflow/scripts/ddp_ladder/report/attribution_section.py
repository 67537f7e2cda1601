"""The report's section "Where the time goes": parts of each step, POP's factors, and what would help. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddp_ladder.gates.attribution import Attribution, Link, attribution, baseline_of
from ddp_ladder.gates.figures import Column, columns
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import USUAL_MARK
from ddp_ladder.report.view import ReportView
from ddp_ladder.settings.terms import REFERENCE_VARIANT, Scale

FACTORS = (
    "global_efficiency",
    "parallel_efficiency",
    "load_balance",
    "communication_efficiency",
    "computation_scaling",
)


@dataclass(frozen=True)
class Explained:
    """A scale, its place in words, and where its efficiency went."""

    place: str
    point: ScalePoint
    found: Attribution


@dataclass(frozen=True)
class AttributionSection:
    """What the section shows. table: points whose parts are known.

    explained: the largest scale of each mode, of the reference variant. others: folded, and not in Markdown.
    plotted: the points of the picture.
    """

    columns: tuple[Column, ...]
    table: tuple[ScalePoint, ...]
    explained: tuple[Explained, ...]
    others: tuple[Explained, ...]
    plotted: tuple[ScalePoint, ...]

    @property
    def is_empty(self) -> bool:
        return not self.table


def caption(first: Scale) -> str:
    """Return the caption of the picture. first: the scale that the ladder starts at."""
    return (
        f"Parts of each step, which add up to it. 100 % is the ideal step: the time of {first} for as many samples per "
        "rank; what is above it is lost."
    )


def attribution_section(view: ReportView) -> AttributionSection:
    """Return what the report says of the parts of each step."""
    known = tuple(point for point in view.rungs if point.rest_s is not None)
    links = {str(scale): Link.of(result) for scale, result in view.results.preflights.items()}
    every = [
        Explained(_place(point, view), point, found)
        for point in map(_against_a_baseline, known)
        if (found := attribution(point, baseline_of(point, view.points), links.get(str(point.scale))))
    ]
    reference = [each for each in every if each.point.variant == REFERENCE_VARIANT]
    largest = {each.point.mode: each for each in sorted(reference, key=lambda each: each.point.world_size)}
    return AttributionSection(
        columns=columns("attribution"),
        table=known,
        explained=tuple(largest.values()),
        others=tuple(each for each in every if each not in largest.values()),
        plotted=tuple(point for point in view.rungs if point.variant == REFERENCE_VARIANT),
    )


def _against_a_baseline(point: ScalePoint) -> ScalePoint:
    """Return the point against the smallest scale that compares if there is no ratio to the ladder's first one."""
    if point.efficiency is not None or not point.smallest_baseline:
        return point
    return replace(point, efficiency=point.efficiency_smallest, baseline=point.smallest_baseline)


def _place(point: ScalePoint, view: ReportView) -> str:
    """Return the place of a scale in words, with its baseline if that is not the scale that the ladder starts at."""
    if point.baseline == str(view.results.plan.first_scale):
        return view.place(point)
    why = f" ({point.smallest_obstacle})" if point.smallest_obstacle else ""
    return f"{view.place(point)}, against {point.baseline}{why}"


def factor_mark(column: Column, point: ScalePoint) -> str:
    """Return ``low`` for a factor of POP below the usual mark; empty otherwise."""
    value = getattr(point, column.key)
    return "low" if column.key in FACTORS and value is not None and value < USUAL_MARK else ""


def picture_in_words(points: Sequence[ScalePoint]) -> str:
    """Return the picture in words, for screen readers."""
    shown = [column for column in columns("attribution") if column.key not in FACTORS]
    lines = [
        f"{point.mode} {point.scale}: " + ", ".join(f"{c.heading} {c.shown(point)} {c.unit}" for c in shown)
        for point in points
        if point.rest_s is not None
    ]
    return f"Parts of a step by scale. {'; '.join(lines) or 'nothing measured yet'}."
