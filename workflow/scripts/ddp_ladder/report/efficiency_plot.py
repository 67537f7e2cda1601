"""Parallel efficiency over scales, with the thresholds of the gates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_ladder.common.formats import stage_name
from ddp_ladder.gates.figures import EFFICIENCY
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.report.plots import (
    Look,
    Thresholds,
    draw_crowd,
    draw_marker,
    large_crowd,
    legend_colour,
    legend_key,
    panel_figure,
    show_message,
    spaced,
    variant_keys,
)
from ddp_ladder.report.style import BAD, BAND, GREY, HALF, IDEAL, INK, PALE, PAPER
from ddp_ladder.settings.terms import Scale

LEAST_BAND = 0.09  # of the axis: a narrower stage has no room for its name
MOST_INTERVAL = 1.5  # the end of a wider interval is in the tables; to scale, it would leave no room for the points
MOST_LABELLED = 9  # scales: more have no room for their names and figures


def efficiency_figure(points: Sequence[ScalePoint], thresholds: Thresholds) -> Figure:
    """Return the plot of efficiency at each scale in climbing order, with the gates' thresholds; a panel per mode.

    Where none is known against the first scale, it is that against the smallest scale that compares.
    """
    if all(point.efficiency is None for point in points):
        points = [_against_smallest(point) for point in points]
    return panel_figure(
        points,
        lambda axes, of_mode, styles: _efficiency_panel(axes, of_mode, styles, thresholds),
        lambda: _efficiency_legend(points, thresholds),
    )


def _against_smallest(point: ScalePoint) -> ScalePoint:
    low, high = point.efficiency_smallest_low, point.efficiency_smallest_high
    return replace(point, efficiency=point.efficiency_smallest, efficiency_low=low, efficiency_high=high)


def _efficiency_panel(
    axes: Axes,
    points: Sequence[ScalePoint],
    styles: Mapping[str, Look],
    thresholds: Thresholds,
) -> None:
    scales = list(dict.fromkeys(point.scale for point in points))
    if not scales:
        show_message(axes, "nothing measured yet")
        return
    places = {scale: float(index) for index, scale in enumerate(scales)}
    top = 1.05 * highest(points)
    axes.set(xlim=(-0.5, len(scales) - 0.5), ylim=(0, 1.09 * top))
    _stage_bands(axes, points, places, thresholds)
    axes.axhline(1, color=GREY, zorder=1, **IDEAL)
    axes.axhline(0.5, color=GREY, zorder=1, **HALF)
    names, labelled = list(styles), len(styles) == 1 and len(scales) <= MOST_LABELLED
    placed = [(places[point.scale] + _dodge(names.index(point.variant), len(names)), point) for point in points]
    crowd = large_crowd(points, styles)
    for place, point in placed:
        if point.variant not in crowd:
            _efficiency_marker(axes, point, place, styles[point.variant], labelled)
    measured = [(place, point) for place, point in placed if point.efficiency is not None]
    draw_crowd(axes, EFFICIENCY, [(place, point) for place, point in measured if point.variant in crowd], styles)
    named = spaced(list(places.values()), len(scales) / MOST_LABELLED)
    axes.set_xticks(named, [str(scales[index]) for index in named])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("scale: nodes x GPUs per node")
    axes.set_ylabel(EFFICIENCY.heading)
    step = 0.2 * max(1, math.ceil(top / 2))
    ticks = [tick * step for tick in range(math.floor(top / step) + 1)]
    axes.set_yticks(ticks, [EFFICIENCY.text(tick) for tick in ticks])
    axes.grid(visible=True, axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)


def highest(points: Sequence[ScalePoint]) -> float:
    """Return what the axis shows: every efficiency, and the ends of intervals that are not beyond all sense."""
    known = [point.efficiency for point in points if point.efficiency is not None]
    ends = [min(point.efficiency_high, MOST_INTERVAL) for point in points if point.efficiency_high is not None]
    return max([1.0, *known, *ends])


def _dodge(index: int, count: int) -> float:
    """Return the offset of a variant beside the others at one scale, within the middle half of its column."""
    return 0.0 if count == 1 else 0.5 * (index / (count - 1) - 0.5)


def _stage_bands(
    axes: Axes,
    points: Sequence[ScalePoint],
    places: Mapping[Scale, float],
    thresholds: Thresholds,
) -> None:
    """Draw one band per stage with its name on top and its gate's threshold as a thin line."""
    top = axes.get_ylim()[1]
    for index, stage in enumerate(dict.fromkeys(point.stage for point in points)):
        own = [places[point.scale] for point in points if point.stage == stage]
        left, right = min(own) - 0.5, max(own) + 0.5
        if index % 2 == 0:
            axes.axvspan(left, right, color=BAND, linewidth=0, zorder=0)
        if right - left > LEAST_BAND * len(places):
            middle, name = (left + right) / 2, stage_name(stage)
            axes.text(middle, 0.987 * top, name, ha="center", va="top", fontsize=9, color=GREY)
        threshold = thresholds.get(stage)
        if threshold is not None:
            axes.plot([left, right], [threshold] * 2, color=INK, linewidth=0.9, zorder=1.5)


def _efficiency_marker(axes: Axes, point: ScalePoint, place: float, look: Look, labelled: bool) -> None:
    if point.efficiency is None:
        if look.in_crowd:
            return
        colour = GREY if point.status == "not run" else BAD
        axes.text(
            place,
            0.03,
            point.status,
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=9,
            color=colour,
        )
        return
    draw_marker(axes, place, EFFICIENCY, point, look)
    if labelled and not point.is_baseline:
        axes.annotate(
            EFFICIENCY.shown(point),
            (place, point.efficiency),
            xytext=(8, 0),
            textcoords="offset points",
            ha="left",
            va="center",
            fontsize=9,
        )


def _efficiency_legend(points: Sequence[ScalePoint], thresholds: Thresholds) -> list[Line2D]:
    if not points:
        return []
    keys, colour = variant_keys(points), legend_colour(points)
    for label, face in (("one node", colour), ("several nodes", PAPER)):
        keys.append(legend_key(label, color=colour, marker="o", linestyle="none", markerfacecolor=face, markersize=6))
    keys.append(legend_key("ideal", color=GREY, **IDEAL))
    keys.append(legend_key("half the ideal", color=GREY, **HALF))
    if any(thresholds.get(point.stage) is not None for point in points):
        keys.append(legend_key("asked by the gate", color=INK, linewidth=0.9))
    return keys
