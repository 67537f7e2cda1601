"""Parallel efficiency over scales, with the thresholds of the gates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_ladder.common.formats import stage_name
from ddp_ladder.gates.figures import EFFICIENCY
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.report.plots import (
    BAND,
    GREY,
    IDEAL,
    INK,
    PALE,
    Look,
    Thresholds,
    draw_marker,
    legend_colour,
    legend_key,
    panel_figure,
    show_message,
    variant_keys,
)
from ddp_ladder.settings.terms import Scale


def efficiency_figure(points: Sequence[ScalePoint], thresholds: Thresholds) -> Figure:
    """Return the plot of efficiency at each scale in climbing order, with the gates' thresholds; a panel per mode."""
    return panel_figure(
        points,
        lambda axes, of_mode, styles: _efficiency_panel(axes, of_mode, styles, thresholds),
        lambda: _efficiency_legend(points, thresholds),
    )


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
    highs = [point.efficiency_high for point in points if point.efficiency_high is not None]
    top = max(1.05, *(1.05 * high for high in highs), 0)
    axes.set(xlim=(-0.5, len(scales) - 0.5), ylim=(0, top + 0.09))
    _stage_bands(axes, points, places, thresholds)
    axes.axhline(1, color=GREY, zorder=1, **IDEAL)
    names = list(styles)
    for point in points:
        shift = _dodge(names.index(point.variant), len(names))
        _efficiency_marker(axes, point, places[point.scale] + shift, styles[point.variant], len(names))
    axes.set_xticks(list(places.values()), [str(scale) for scale in scales])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("scale: nodes x GPUs per node")
    axes.set_ylabel(EFFICIENCY.heading)
    ticks = [tick / 5 for tick in range(math.floor(5 * top) + 1)]
    axes.set_yticks(ticks, [EFFICIENCY.text(tick) for tick in ticks])
    axes.grid(visible=True, axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)


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
        axes.text(
            (left + right) / 2,
            top - 0.015,
            stage_name(stage),
            ha="center",
            va="top",
            fontsize=8.5,
            color=GREY,
        )
        threshold = thresholds.get(stage)
        if threshold is not None:
            axes.plot([left, right], [threshold] * 2, color=INK, linewidth=0.9, zorder=1.5)


def _efficiency_marker(axes: Axes, point: ScalePoint, place: float, look: Look, variants: int) -> None:
    if point.efficiency is None:
        colour = GREY if point.status == "not run" else "#9b1c1c"
        axes.text(
            place,
            0.03,
            point.status,
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=8,
            color=colour,
        )
        return
    draw_marker(axes, place, EFFICIENCY, point, look)
    if variants == 1 and point.world_size > 1:
        axes.annotate(
            EFFICIENCY.shown(point),
            (place, point.efficiency),
            xytext=(8, 0),
            textcoords="offset points",
            ha="left",
            va="center",
            fontsize=8.5,
        )


def _efficiency_legend(points: Sequence[ScalePoint], thresholds: Thresholds) -> list[Line2D]:
    if not points:
        return []
    keys, colour = variant_keys(points), legend_colour(points)
    for label, face in (("one node", colour), ("several nodes", "white")):
        keys.append(legend_key(label, color=colour, marker="o", linestyle="none", markerfacecolor=face, markersize=6))
    keys.append(legend_key("ideal", color=GREY, **IDEAL))
    if any(thresholds.get(point.stage) is not None for point in points):
        keys.append(legend_key("asked by the gate", color=INK, linewidth=0.9))
    return keys
