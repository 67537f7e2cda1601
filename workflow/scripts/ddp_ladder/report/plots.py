"""The plots of the report: throughput, efficiency, parts of a step, and the comparison of variants.

Throughput and efficiency have a panel per mode, the ideal beside what was measured, and 95 % intervals. Scales with
the same number of GPUs are different points: 1x2 and 2x1 share a place on the GPU axis, never a line. A line connects
growth of one kind: more GPUs in one node, or more nodes with the same GPUs in each.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ddp_ladder.analysis.comparison import FASTER, SLOWER, Compared, Comparison, Panel, decisive
from ddp_ladder.common.formats import stage_name
from ddp_ladder.gates.figures import EFFICIENCY, SAMPLES_PER_S, Column, columns
from ddp_ladder.gates.points import ScalePoint

WIDTH_IN, PANEL_IN, MARGIN_IN = 5.0, 2.7, 0.6  # narrow: its text can still be read on a phone and in print
MOST_LABELLED = 9  # scales: more have no room for their names and figures
MOST_INTERVAL = 1.5  # the end of a wider interval of efficiency is in the tables
MOST_PANELS, MOST_ROWS = 12, 80  # of a comparison
LONGEST_NAME = 24  # of a variant

# Okabe and Ito: distinct with any colour vision; the markers are distinct without any colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, GREY, PALE, BAND, PAPER, BAD, CROWD = "#1f2933", "#6b7785", "#d5dae0", "#f4f6f8", "#ffffff", "#9b1c1c", "#9fabb7"
STYLE: dict[Any, Any] = {  # matplotlib types the keys as a literal of all its settings
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture on every machine
    "font.size": 9,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "grid.color": PALE,
    "grid.linewidth": 0.6,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handlelength": 1.6,
    "text.parse_math": False,  # a variant may have a dollar sign in its name
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "ddp-ladder",  # fixed ids: the same records give the same file
}
IDEAL: dict[str, Any] = {"linewidth": 0.9, "linestyle": (0, (1, 1.6))}
HALF: dict[str, Any] = {"linewidth": 0.9, "linestyle": (0, (5, 3))}
PARTS = {  # from the bottom up: what the training is for, then what it waits for
    "compute_s": "#0072B2",
    "rest_s": "#9aa5b1",
    "data_wait_s": "#E69F00",
    "exposed_comm_s": "#D55E00",
    "imbalance_s": "#CC79A7",
}
DARK = ("compute_s", "exposed_comm_s")  # with white text
LEAST_TEXT = 0.06  # of the panel's height: a lower part has no room for its figure

Thresholds = Mapping[str, float | None]
"""min_efficiency by stage, a fraction."""


def drawn(figure: Figure) -> dict[str, bytes]:
    """Return a figure as SVG and as PNG of 200 dots per inch."""
    found = {}
    with rc_context(STYLE):
        for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, metadata=metadata, dpi=200)
            found[kind] = buffer.getvalue()
    return found


# --- What the plots of scales share.


@dataclass(frozen=True)
class Look:
    """Colour and marker of a variant, the same in every panel."""

    colour: str
    marker: str


Looks = Mapping[str, Look]


def looks(points: Sequence[ScalePoint]) -> dict[str, Look]:
    """Return the look of each variant, in the order of the points; those beyond seven are grey."""
    names = dict.fromkeys(point.variant for point in points)
    known = [Look(*each) for each in zip(COLOURS, MARKERS, strict=True)]
    return {name: known[k] if k < len(known) else Look(CROWD, ".") for k, name in enumerate(names)}


def _panels(
    points: Sequence[ScalePoint],
    draw: Callable[[Axes, Sequence[ScalePoint], Looks], None],
    keys: Sequence[Line2D],
) -> Figure:
    """Return a figure with a panel per mode, below each other, and the legend above them. draw: fills a panel."""
    modes = list(dict.fromkeys(point.mode for point in points)) or [""]
    size = (WIDTH_IN, MARGIN_IN + PANEL_IN * len(modes))
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained", facecolor=PAPER)
        for mode, axes in zip(modes, figure.subplots(len(modes), 1, squeeze=False)[:, 0], strict=True):
            own = [point for point in points if point.mode == mode]
            axes.set_title(f"{mode} scaling" if len(modes) > 1 else "")
            draw(axes, own, looks(points))
        if keys:
            widest = max(len(str(key.get_label())) for key in keys) + 7
            figure.legend(handles=keys, loc="outside upper left", ncols=max(1, min(4, 72 // widest)), columnspacing=1.4)
    return figure


def show_message(axes: Axes, text: str) -> None:
    """Show a text where there is nothing to draw."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color=GREY, transform=axes.transAxes)


def legend_key(label: str, **style: Any) -> Line2D:
    """Return an entry of a legend; a space before an underscore, as matplotlib hides labels that begin with one."""
    return Line2D([], [], label=f" {label}" if label.startswith("_") else label, **style)


def short(name: str) -> str:
    """Return a name that has room in a plot."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _variant_keys(points: Sequence[ScalePoint]) -> tuple[list[Line2D], str]:
    """Return an entry for each variant if there are several, and the colour of the entries that hold for all."""
    found = looks(points)
    if len(found) < 2:
        return [], COLOURS[0]
    shown = [(name, look) for name, look in found.items() if look.colour != CROWD]
    keys = [legend_key(short(name), color=look.colour, marker=look.marker, linestyle="none") for name, look in shown]
    if len(shown) < len(found):
        words = f"{len(found) - len(shown)} other variants"
        keys.append(legend_key(words, color=CROWD, marker=".", linestyle="none"))
    return keys, GREY


def _draw_point(axes: Axes, place: float, column: Column, point: ScalePoint, look: Look) -> None:
    """Draw a figure of a point with its interval: full within one node, hollow across nodes."""
    estimate = column.estimate(point)
    if estimate is None:
        return
    value, low, high = estimate
    axes.errorbar(
        [place], [value], yerr=[[value - low], [high - value]],
        color=look.colour, marker=look.marker, markersize=6.5, markeredgewidth=1.4, elinewidth=1.3, capsize=3,
        markerfacecolor=look.colour if point.nodes == 1 else PAPER, linestyle="none", zorder=3,
    )  # fmt: skip


# --- Throughput.


def throughput_figure(points: Sequence[ScalePoint], units: str) -> Figure:
    """Return the plot of samples/s against the number of ``units`` ("GPUs"), both logarithmic, one panel per mode."""
    measured = [point for point in points if point.samples_per_s is not None]
    keys: list[Line2D] = []
    if measured:
        keys, colour = _variant_keys(points)
        styles = {dashes for name in looks(measured) for _, dashes in growth(_of(measured, name))}
        for dashes, words in (("-", f"more {units} in one node"), ("--", "more nodes")):
            if dashes in styles:
                keys.append(legend_key(words, color=colour, linewidth=1.5, linestyle=dashes))
        keys += [legend_key("ideal", color=GREY, **IDEAL), legend_key("half the ideal", color=GREY, **HALF)]
    return _panels(points, lambda axes, own, styles: _throughput(axes, own, styles, units), keys)


def _of(points: Sequence[ScalePoint], variant: str) -> list[ScalePoint]:
    return [point for point in points if point.variant == variant]


def _throughput(axes: Axes, points: Sequence[ScalePoint], styles: Looks, units: str) -> None:
    measured = [point for point in points if point.samples_per_s is not None]
    if not measured:
        show_message(axes, "nothing measured yet")
        return
    sizes = sorted({point.world_size for point in measured})
    right = sizes[-1] * 1.35
    for variant, look in styles.items():
        own = _of(measured, variant)
        rate = rate_per_gpu(own)
        if rate is not None:
            colour = GREY if len(styles) == 1 else look.colour
            axes.plot((1, right), (rate, rate * right), color=colour, zorder=1, **IDEAL)
            axes.plot((1, right), (rate / 2, rate * right / 2), color=colour, zorder=1, **HALF)
        for line, dashes in growth(own):
            rates = [point.samples_per_s or math.nan for point in line]
            axes.plot([p.world_size for p in line], rates, color=look.colour, linewidth=1.5, linestyle=dashes, zorder=2)
        for point in own:
            _draw_point(axes, point.world_size, SAMPLES_PER_S, point, look)
    ideal = max((rate_per_gpu(_of(measured, name)) or 0.0 for name in styles), default=0.0) * sizes[-1]
    rates = [point.samples_per_s or 0.0 for point in measured]
    left = sizes[0] / max(1.35, (sizes[-1] / sizes[0]) ** 0.15)  # room for the name of the first point
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(min(rates) / 1.5, 1.1 * max(*rates, ideal) * 1.1))
    axes.set(xlabel=units, ylabel=SAMPLES_PER_S.heading)
    _name_scales(axes, measured, sizes)
    axes.xaxis.set_major_locator(FixedLocator([sizes[k] for k in spaced(list(map(math.log, sizes)))]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.grid(visible=True, axis="y")


def rate_per_gpu(points: Sequence[ScalePoint]) -> float | None:
    """Return the ideal of a series: samples/s per GPU at its baseline; None if there is none."""
    base = next((point for point in points if point.is_baseline), None)
    return None if base is None or base.samples_per_s is None else base.samples_per_s / base.world_size


def growth(points: Sequence[ScalePoint]) -> list[tuple[list[ScalePoint], str]]:
    """Return the lines to draw, with their style: solid within one node, dashed across nodes."""
    within = sorted((p for p in points if p.nodes == 1), key=lambda point: point.gpus_per_node)
    lines = [(within, "-")]
    for gpus in sorted({point.gpus_per_node for point in points}):
        column = [point for point in points if point.gpus_per_node == gpus]
        lines.append((sorted(column, key=lambda point: point.nodes), "--"))
    return [(line, style) for line, style in lines if len(line) > 1 and len({p.mode for p in line}) == 1]


def _name_scales(axes: Axes, points: Sequence[ScalePoint], sizes: Sequence[int]) -> None:
    """Label each scale once, below right of its lowest point (the first: left); a faster twin above left."""
    lowest: dict[object, ScalePoint] = {}
    for point in sorted(points, key=lambda point: point.samples_per_s or 0.0):
        lowest.setdefault(point.scale, point)
    for size in (sizes[k] for k in spaced(list(map(math.log, sizes)))):
        for k, point in enumerate(point for point in lowest.values() if point.world_size == size):
            left = k > 0 or size == sizes[0]  # lines lead to the right from the first
            axes.annotate(
                str(point.scale), (size, point.samples_per_s or 1), (-8 if left else 8, 6 if k else -9),
                textcoords="offset points", ha="right" if left else "left", fontsize=9, color=GREY,
                bbox={"facecolor": PAPER, "alpha": 0.75, "edgecolor": "none", "pad": 0.6},
            )  # fmt: skip


def spaced(places: Sequence[float], most: int = MOST_LABELLED + 1) -> list[int]:
    """Return the indices of ascending places that have room for a name; the last is always among them."""
    least, kept = (places[-1] - places[0]) / most, [len(places) - 1]
    for index in reversed(range(len(places) - 1)):
        if places[kept[-1]] - places[index] >= least:
            kept.append(index)
    return kept[::-1]


# --- Efficiency.


def efficiency_figure(points: Sequence[ScalePoint], thresholds: Thresholds) -> Figure:
    """Return the plot of efficiency at each scale in climbing order, with the gates' thresholds; a panel per mode."""
    keys: list[Line2D] = []
    if points:
        keys, colour = _variant_keys(points)
        for label, face in (("one node", colour), ("several nodes", PAPER)):
            keys.append(legend_key(label, color=colour, marker="o", linestyle="none", markerfacecolor=face))
        keys += [legend_key("ideal", color=GREY, **IDEAL), legend_key("half the ideal", color=GREY, **HALF)]
    if any(thresholds.get(point.stage) is not None for point in points):
        keys.append(legend_key("asked by the gate", color=INK, linewidth=0.9))
    return _panels(points, lambda axes, own, styles: _efficiency(axes, own, styles, thresholds), keys)


def _efficiency(axes: Axes, points: Sequence[ScalePoint], styles: Looks, thresholds: Thresholds) -> None:
    scales = list(dict.fromkeys(point.scale for point in points))
    if not scales:
        show_message(axes, "nothing measured yet")
        return
    known = [point.efficiency for point in points if point.efficiency is not None]
    ends = [min(point.efficiency_high, MOST_INTERVAL) for point in points if point.efficiency_high is not None]
    top = 1.05 * max([1.0, *known, *ends])
    axes.set(xlim=(-0.5, len(scales) - 0.5), ylim=(0, 1.09 * top))
    _stages(axes, points, {scale: k for k, scale in enumerate(scales)}, thresholds)
    axes.axhline(1, color=GREY, zorder=1, **IDEAL)
    axes.axhline(0.5, color=GREY, zorder=1, **HALF)
    names = list(styles)
    for point in points:
        aside = 0.0 if len(names) == 1 else 0.5 * (names.index(point.variant) / (len(names) - 1) - 0.5)
        place = scales.index(point.scale) + aside
        _draw_point(axes, place, EFFICIENCY, point, styles[point.variant])
        if point.efficiency is None and styles[point.variant].colour != CROWD:
            colour = GREY if point.status == "not run" else BAD
            axes.text(place, 0.03, point.status, rotation=90, ha="center", va="bottom", fontsize=9, color=colour)
        elif (
            point.efficiency is not None and len(names) == 1 and len(scales) <= MOST_LABELLED and not point.is_baseline
        ):
            axes.annotate(
                EFFICIENCY.shown(point), (place, point.efficiency), (8, 0),
                textcoords="offset points", ha="left", va="center", fontsize=9,
            )  # fmt: skip
    _scale_axis(axes, [str(scale) for scale in scales])
    step = 0.2 * max(1, math.ceil(top / 2))
    ticks = [tick * step for tick in range(math.floor(top / step) + 1)]
    axes.set_yticks(ticks, [EFFICIENCY.text(tick) for tick in ticks])
    axes.set_ylabel(EFFICIENCY.heading)


def _scale_axis(axes: Axes, scales: Sequence[str]) -> None:
    named = spaced(range(len(scales)))
    axes.set_xticks(named, [scales[index] for index in named])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("scale: nodes x GPUs per node")
    axes.grid(visible=True, axis="y")


def _stages(axes: Axes, points: Sequence[ScalePoint], places: Mapping[Any, int], thresholds: Thresholds) -> None:
    """Draw one band per stage with its name on top and its gate's threshold as a thin line."""
    for index, stage in enumerate(dict.fromkeys(point.stage for point in points)):
        own = [places[point.scale] for point in points if point.stage == stage]
        left, right = min(own) - 0.5, max(own) + 0.5
        if index % 2 == 0:
            axes.axvspan(left, right, color=BAND, linewidth=0, zorder=0)
        if right - left > 0.09 * len(places):  # room for its name
            middle, top = (left + right) / 2, 0.987 * axes.get_ylim()[1]
            axes.text(middle, top, stage_name(stage), ha="center", va="top", fontsize=9, color=GREY)
        if (threshold := thresholds.get(stage)) is not None:
            axes.plot([left, right], [threshold] * 2, color=INK, linewidth=0.9, zorder=1.5)


# --- Parts of a step.


def attribution_figure(points: Sequence[ScalePoint]) -> Figure:
    """Return the plot of the parts of a step at each scale in climbing order, the ideal step being 100 %.

    points: of one variant. The ideal step takes as long as the first scale for as many samples per rank.
    """
    shown = [point for point in points if _height(point)]
    known = {column.key: column for column in columns("attribution")}
    keys = [
        legend_key(f"{known[key].heading}, {known[key].unit}", color=colour, marker="s", linestyle="none", markersize=7)
        for key, colour in PARTS.items()
        if any(getattr(point, key) for point in shown)
    ]
    if any(point.compute_s is None for point in shown):
        keys.append(legend_key("hatched: with compute: not told apart", linestyle="none"))
    return _panels(points, _attribution, [*keys, legend_key("ideal", color=INK, **IDEAL)] if shown else [])


def _height(point: ScalePoint) -> float | None:
    """Return the step time as a multiple of the ideal one; None if there is no ratio, or no part is known."""
    return 1 / point.efficiency if point.efficiency and point.rest_s is not None else None


def _attribution(axes: Axes, points: Sequence[ScalePoint], _: Looks) -> None:
    if not any(_height(point) for point in points):
        show_message(axes, f"no step has been compared with one at {points[0].baseline if points else '1x1'} yet")
        return
    top = 1.12 * max(1.0, *(_height(point) or 0.0 for point in points))
    axes.set(xlim=(-0.5, len(points) - 0.5), ylim=(0, top))
    for place, point in enumerate(points):
        if height := _height(point):
            _bar(axes, place, point, height, labelled=len(points) <= MOST_LABELLED)
        else:
            axes.text(place, 0.03 * top, point.status, rotation=90, ha="center", va="bottom", fontsize=9, color=GREY)
    axes.axhline(1, color=INK, zorder=4, **IDEAL)
    _scale_axis(axes, [str(point.scale) for point in points])
    axes.set_ylabel("step time / ideal step time")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: EFFICIENCY.text(value)))


def _bar(axes: Axes, place: float, point: ScalePoint, height: float, *, labelled: bool) -> None:
    known = {column.key: column for column in columns("attribution")}
    bottom, scale = 0.0, height / (point.step_time_s or 1.0)
    for key, colour in PARTS.items():
        part = scale * (getattr(point, key) or 0.0)
        hatch = "///" if key == "rest_s" and point.compute_s is None else None
        axes.bar(place, part, 0.62, bottom, color=colour, hatch=hatch, edgecolor=PAPER, linewidth=0.6, zorder=2)
        if labelled and part >= LEAST_TEXT * axes.get_ylim()[1]:
            back = {"facecolor": colour, "edgecolor": "none", "pad": 0.8}  # over hatching and the line of the ideal
            axes.text(
                place, bottom + part / 2, known[key].shown(point), ha="center", va="center", fontsize=9,
                color=PAPER if key in DARK else INK, bbox=back, zorder=5,
            )  # fmt: skip
        bottom += part
    if labelled:
        step = next(column for column in columns("csv") if column.key == "step_time_s")
        text = f"{step.shown(point)} ms"
        axes.annotate(text, (place, bottom), (0, 3), textcoords="offset points", ha="center", fontweight="bold")


# --- Comparison.


def comparison_figure(comparison: Comparison) -> Figure:
    """Return the forest plot: each ratio with its interval, a panel per mode and scale; of many the largest."""
    panels = shown_panels(comparison)
    ordered = [*decisive(comparison), *panels]
    labels = list(dict.fromkeys(row.name for each in ordered for row in each.rows))
    across = min(2, len(panels)) or 1
    down = math.ceil(len(panels) / across) or 1
    size = (WIDTH_IN, 0.4 + down * (0.85 + 0.23 * max(2, len(labels))))
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained", facecolor=PAPER)
        places = [axes for line in figure.subplots(down, across, squeeze=False) for axes in line]
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        for k, panel in enumerate(panels):
            _forest(places[k], panel, labels)
            places[k].set_yticks(range(len(labels)), [short(name) if k % across == 0 else "" for name in labels])
            places[k].set_xlabel(f"throughput / {comparison.reference}" if comparison.is_paired else "ratio")
        if not panels:
            show_message(places[0], "nothing can be compared yet")
            return figure
        marker: dict[str, Any] = {"marker": "s", "markersize": 5.5, "linewidth": 1.5}
        keys = [
            legend_key("faster", color=COLOURS[0], **marker),
            legend_key("slower", color=COLOURS[1], **marker),
            legend_key("not shown to differ", color=GREY, markerfacecolor=PAPER, **marker),
        ]
        figure.legend(handles=keys, loc="outside upper left", ncols=3, columnspacing=1.4)
    return figure


def shown_panels(comparison: Comparison) -> list[Panel]:
    """Return the panels of the plot: those with ratios, in the order of the plan; of many the largest scales."""
    panels = [each for each in comparison.panels if each.compared]
    by_size = sorted(panels, key=lambda each: each.scale.world_size, reverse=True)
    most = min(MOST_PANELS, max(4, MOST_ROWS // max((len(each.rows) for each in panels), default=1)))
    return [each for each in panels if each in by_size[:most]]


def _forest(axes: Axes, panel: Panel, labels: Sequence[str]) -> None:
    values = [row.ratio.value for row in panel.compared if row.ratio]
    ends = [end for row in panel.compared if row.ratio for end in (row.ratio.low, row.ratio.high) if end is not None]
    aside = max(0.05, *(abs(value - 1) for value in values))
    low = max(0.0, 1 - 1.6 * aside - 0.05, min(0.95, *values, *ends) - 0.1 * aside)
    high = min(1 + 1.6 * aside + 0.05, max(1.05, *values, *ends) + 0.1 * aside)
    axes.set(xlim=(low, high), ylim=(len(labels) - 0.5, -0.5))
    axes.set_title(panel.place)
    axes.axvline(1, color=INK, linewidth=0.9, zorder=1)
    for row in panel.rows:
        _ratio(axes, row, labels.index(row.name), low, high)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.spines["left"].set_visible(False)


def _ratio(axes: Axes, row: Compared, place: int, low: float, high: float) -> None:
    """Draw a ratio; an interval that leaves the panel is cut, with an arrow."""
    if row.ratio is None:
        text = "reference" if row.is_reference else row.found.partition(":")[0]
        x = 1.0 if row.is_reference else (low + high) / 2
        back = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.0}
        axes.text(x, place, text, ha="center", va="center", fontsize=8, color=GREY, bbox=back, zorder=4)
        return
    colour = {FASTER: COLOURS[0], SLOWER: COLOURS[1]}.get(row.found, GREY)
    if row.ratio.low is not None and row.ratio.high is not None:
        ends = max(low, row.ratio.low), min(high, row.ratio.high)
        axes.plot(ends, (place, place), color=colour, linewidth=1.5, solid_capstyle="butt", zorder=2)
        for end, limit, arrow in ((row.ratio.low, low, "<"), (row.ratio.high, high, ">")):
            if not low <= end <= high:
                axes.plot(limit, place, marker=arrow, color=colour, markersize=5, clip_on=False, zorder=3)
    face = colour if row.found in (FASTER, SLOWER) else PAPER
    axes.plot(row.ratio.value, place, "s", markersize=5.5, color=colour, markerfacecolor=face, zorder=3)
