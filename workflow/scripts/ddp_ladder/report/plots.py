"""Plots of throughput and efficiency: one panel per mode, ideal beside measured, 95 % intervals.

Scales with the same number of GPUs are different points: 1x2 and 2x1 share a place on the GPU axis, never a line.
A line connects growth of one kind: more GPUs in one node, or more nodes with the same GPUs in each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_ladder.gates.figures import EFFICIENCY, SAMPLES_PER_S, SPEEDUP, Column
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.report.style import COLOURS, CROWD, GREY, MARKERS, PAPER, STYLE
from ddp_ladder.report.svg import value_id
from ddp_ladder.settings.terms import REFERENCE_VARIANT

WIDTH_IN, PANEL_IN, MARGIN_IN = 5.0, 2.7, 0.6  # narrow: its text can still be read on a phone and in print
WIDEST_LEGEND, OF_A_KEY = 66, 7  # characters of a row of a legend; what its line or marker takes
LONGEST_NAME = 40  # of a variant, in a legend
MOST_VALUES = 200  # of a panel: more points of a crowd are too many to be pointed at
Placed = tuple[float, ScalePoint]  # the place on the horizontal axis
Thresholds = Mapping[str, float | None]  # min_efficiency by stage, a fraction


@dataclass(frozen=True)
class Look:
    """Colour and marker of a variant, the same in every panel."""

    colour: str
    marker: str
    in_crowd: bool = False

    @property
    def zorder(self) -> float:
        return 2.4 if self.in_crowd else 3


def looks(points: Sequence[ScalePoint]) -> dict[str, Look]:
    """Return the look of each variant, in the order of the points; beyond seven all but the first are grey."""
    names = list(dict.fromkeys(point.variant for point in points))
    if len(names) > len(COLOURS):
        crowd = dict.fromkeys(names, Look(CROWD, MARKERS[0], in_crowd=True))
        return {**crowd, names[0]: Look(COLOURS[0], MARKERS[0])}
    return {name: Look(COLOURS[index], MARKERS[index]) for index, name in enumerate(names)}


def panel_figure(
    points: Sequence[ScalePoint],
    draw: Callable[[Axes, Sequence[ScalePoint], Mapping[str, Look]], None],
    legend: Callable[[], Sequence[Line2D]],
) -> Figure:
    """Return a figure in the report's style: a panel per mode, below each other, with the legend above them.

    draw: draws the points of a mode into its panel.
    """
    with rc_context(STYLE):
        figure, panels = _panels(points)
        styles = looks(points)
        for mode, axes in panels.items():
            draw(axes, [point for point in points if point.mode == mode], styles)
        if keys := legend():
            figure.legend(
                handles=keys,
                loc="outside upper left",
                ncols=_legend_columns([str(key.get_label()) for key in keys]),
                columnspacing=1.4,
            )
    return figure


def _legend_columns(labels: Sequence[str]) -> int:
    """Return how many columns are no wider than the figure, four at most."""
    columns = (each for each in range(min(4, len(labels)), 1, -1) if _legend_width(labels, each) <= WIDEST_LEGEND)
    return next(columns, 1)


def _legend_width(labels: Sequence[str], columns: int) -> int:
    """Return the width of a legend in characters; matplotlib fills one column after the other."""
    rows, longer = divmod(len(labels), columns)  # the first columns have a row more
    ends = [rows * column + min(column, longer) for column in range(columns + 1)]
    return sum(max(map(len, labels[first:last])) + OF_A_KEY for first, last in pairwise(ends))


def _panels(points: Sequence[ScalePoint]) -> tuple[Figure, dict[str, Axes]]:
    """Return a figure with one panel per mode, below each other."""
    modes = list(dict.fromkeys(point.mode for point in points)) or [""]
    figure = Figure(
        figsize=(WIDTH_IN, MARGIN_IN + PANEL_IN * len(modes)),
        layout="constrained",
        facecolor=PAPER,
    )
    axes = figure.subplots(len(modes), 1, squeeze=False)[:, 0]
    for mode, panel in zip(modes, axes, strict=True):
        if len(modes) > 1:
            panel.set_title(f"{mode} scaling")
    return figure, dict(zip(modes, axes, strict=True))


def show_message(axes: Axes, text: str) -> None:
    """Show a text where there is nothing to draw."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color=GREY, transform=axes.transAxes)


def legend_key(label: str, **style: Any) -> Line2D:
    """Return an entry of a legend."""
    return Line2D([], [], label=label, **style)


def legend_colour(points: Sequence[ScalePoint]) -> str:
    """Return the colour of the entries that hold for every variant: grey if there are several."""
    return GREY if len(looks(points)) > 1 else COLOURS[0]


def variant_keys(points: Sequence[ScalePoint]) -> list[Line2D]:
    """Return an entry of the legend for each variant; none if there is only one."""
    found = looks(points)
    keys = [
        legend_key(_plain(name), color=look.colour, marker=look.marker, linestyle="none", markersize=6)
        for name, look in found.items()
        if len(found) > 1 and not look.in_crowd
    ]
    if crowd := [look for look in found.values() if look.in_crowd]:
        words = f"{len(crowd)} other variants"
        keys.append(legend_key(words, color=CROWD, marker=crowd[0].marker, linestyle="none", markersize=6))
    return keys


def _plain(text: str) -> str:
    """Return a short label, with a space before an underscore: matplotlib hides labels that begin with one."""
    text = text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"
    return f" {text}" if text.startswith("_") else text


def draw_marker(axes: Axes, place: float, column: Column, point: ScalePoint, look: Look) -> None:
    """Draw a figure of a point with its interval, which shows its values when it is pointed at."""
    _errorbar(axes, column, [(place, point)], look).lines[0].set_gid(value_id(point_in_words(point)))


def large_crowd(points: Sequence[ScalePoint], styles: Mapping[str, Look]) -> frozenset[str]:
    """Return the variants whose points are too many to be pointed at, so that they are drawn at once; usually none."""
    crowd = [point.variant for point in points if styles[point.variant].in_crowd]
    return frozenset(crowd if len(crowd) > MOST_VALUES else ())


def draw_crowd(axes: Axes, column: Column, placed: Sequence[Placed], styles: Mapping[str, Look]) -> None:
    """Draw the points of a large crowd, all of which look alike."""
    for in_one_node in (True, False):
        alike = [(place, point) for place, point in placed if (point.nodes == 1) is in_one_node]
        if alike:
            _errorbar(axes, column, alike, styles[alike[0][1].variant])


def _errorbar(axes: Axes, column: Column, placed: Sequence[Placed], look: Look) -> ErrorbarContainer:
    """Draw a figure of points with their intervals: full within one node, hollow across nodes, the same for all."""
    unknown = (math.nan, math.nan, math.nan)
    estimates = [column.estimate(point) or unknown for _, point in placed]
    return axes.errorbar(
        [place for place, _ in placed],
        [value for value, _, _ in estimates],
        yerr=[[value - low for value, low, _ in estimates], [high - value for value, _, high in estimates]],
        color=look.colour,
        marker=look.marker,
        markersize=4.5 if look.in_crowd else 6.5,
        markerfacecolor=look.colour if placed[0][1].nodes == 1 else PAPER,
        markeredgewidth=1.4,
        elinewidth=0.7 if look.in_crowd else 1.3,
        capsize=0 if look.in_crowd else 3,
        linestyle="none",
        zorder=look.zorder,
    )


def point_in_words(point: ScalePoint) -> str:
    """Return ``1x4 weak gloo: 9,377 samples/s [9,280-9,470], speed-up 3.80, efficiency 95 % [94-96 %]``."""
    variant = "" if point.variant == REFERENCE_VARIANT else f" {point.variant}"
    shown = [f"{SAMPLES_PER_S.shown(point)} {SAMPLES_PER_S.heading} {SAMPLES_PER_S.interval(point)}"]
    if point.efficiency is not None:
        shown.append(f"{SPEEDUP.heading} {SPEEDUP.shown(point)}")
        shown.append(f"{EFFICIENCY.heading} {EFFICIENCY.shown(point)} {EFFICIENCY.interval(point)}")
    return f"{point.scale} {point.mode}{variant}: {', '.join(map(str.strip, shown))}"


def spaced(places: Sequence[float], least: float) -> list[int]:
    """Return the indices of places, in ascending order, that are ``least`` apart; the last is always among them."""
    kept: list[int] = []
    for index in reversed(range(len(places))):
        if not kept or places[kept[-1]] - places[index] >= least:
            kept.append(index)
    return kept[::-1]
