"""The plot of what each scale's step is spent on: stacked parts that add up to the step, beside the ideal step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_ladder.gates.figures import EFFICIENCY, Column, columns
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.report.plots import legend_key, panel_figure, show_message, spaced
from ddp_ladder.report.style import GREY, IDEAL, INK, ON_BRIGHT, PALE, PAPER
from ddp_ladder.report.svg import value_id
from ddp_ladder.settings.terms import ONE_GPU

PARTS = {  # from the bottom up: what the training is for, then what it waits for
    "compute_s": "#0072B2",
    "rest_s": "#9aa5b1",
    "data_wait_s": "#E69F00",
    "exposed_comm_s": "#D55E00",
    "imbalance_s": "#CC79A7",
}
DARK = ("compute_s", "exposed_comm_s")  # with white text
NOT_TOLD_APART = "with compute: not told apart"
LEAST_TEXT = 0.06  # of the panel's height: a lower part has no room for its figure
MOST_LABELLED = 8  # scales: the bars of more are too narrow for figures
WIDTH = 0.62


def attribution_figure(points: Sequence[ScalePoint]) -> Figure:
    """Return the plot of the parts of a step at each scale in climbing order, the ideal step being 100 %.

    points: of one variant; a panel per mode. The ideal step takes as long as the first scale for as many samples per
    rank.
    """
    return panel_figure(points, lambda axes, of_mode, _: _panel(axes, of_mode), lambda: _legend(points))


def _panel(axes: Axes, points: Sequence[ScalePoint]) -> None:
    known = [point for point in points if _height(point)]
    if not known:
        baseline = points[0].baseline if points else ONE_GPU
        show_message(axes, f"no step has been compared with one at {baseline} yet")
        return
    top = 1.12 * max(1.0, *(_height(point) or 0.0 for point in known))
    axes.set(xlim=(-0.5, len(points) - 0.5), ylim=(0, top))
    for place, point in enumerate(points):
        if height := _height(point):
            _bar(axes, place, point, height, labelled=len(points) <= MOST_LABELLED)
        else:
            axes.text(place, 0.03 * top, point.status, rotation=90, ha="center", va="bottom", fontsize=9, color=GREY)
    axes.axhline(1, color=INK, zorder=4, **IDEAL)
    named = spaced(range(len(points)), len(points) / MOST_LABELLED)
    axes.set_xticks(named, [str(points[index].scale) for index in named])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("scale: nodes x GPUs per node")
    axes.set_ylabel("step time / ideal step time")
    axes.yaxis.set_major_formatter(lambda value, _: EFFICIENCY.text(value))
    axes.grid(visible=True, axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)


def _height(point: ScalePoint) -> float | None:
    """Return the step time as a multiple of the ideal one; None if there is no ratio, or no part is known."""
    return 1 / point.efficiency if point.efficiency and point.rest_s is not None else None


def _bar(axes: Axes, place: float, point: ScalePoint, height: float, labelled: bool) -> None:
    bottom, scale = 0.0, height / (point.step_time_s or 1.0)
    for column in _columns():
        part = scale * (getattr(point, column.key) or 0.0)
        hatch = "///" if column.key == "rest_s" and point.compute_s is None else None
        colour = PARTS[column.key]
        bars = axes.bar(place, part, WIDTH, bottom, color=colour, hatch=hatch, edgecolor=PAPER, linewidth=0.6, zorder=2)
        if part:
            words = f"{point.scale} {point.mode}: {column.heading} {column.shown(point)} {column.unit}"
            bars[0].set_gid(value_id(f"{words} of {_step_time().shown(point)} ms"))
        if labelled and part >= LEAST_TEXT * axes.get_ylim()[1]:
            ink = PAPER if column.key in DARK else ON_BRIGHT
            axes.text(
                place,
                bottom + part / 2,
                column.shown(point),
                ha="center",
                va="center",
                fontsize=9,
                color=ink,
                bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.8},  # over hatching and the line of the ideal
                zorder=5,
            )
        bottom += part
    if labelled:
        text = f"{_step_time().shown(point)} ms"
        axes.annotate(
            text, (place, bottom), (0, 3), textcoords="offset points", ha="center", fontsize=9, fontweight="bold"
        )


def _columns() -> list[Column]:
    found = {column.key: column for column in columns("attribution")}
    return [found[key] for key in PARTS]


def _step_time() -> Column:
    return next(column for column in columns("csv") if column.key == "step_time_s")


def _legend(points: Sequence[ScalePoint]) -> list[Line2D]:
    shown = [point for point in points if _height(point)]
    if not shown:
        return []
    square: Mapping[str, object] = {"marker": "s", "linestyle": "none", "markersize": 7}
    keys = [
        legend_key(f"{column.heading}, {column.unit}", color=PARTS[column.key], **square)
        for column in _columns()
        if any(getattr(point, column.key) for point in shown)
    ]
    if any(point.compute_s is None for point in shown):
        keys.append(legend_key(f"hatched: {NOT_TOLD_APART}", color="none", marker="none", linestyle="none"))
    return [*keys, legend_key("ideal", color=INK, **IDEAL)]
