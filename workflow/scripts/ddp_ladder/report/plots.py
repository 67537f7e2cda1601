"""The plots of the report: throughput, efficiency, and the parts of a step.

Throughput and efficiency have a panel per mode, the ideal beside what was measured, and 95 % intervals. Scales with
the same number of GPUs are different points: 1x2 and 2x1 stand beside each other on the GPU axis, and never share a
line. A line connects growth of one kind: more GPUs in one node, or more nodes with the same GPUs in each.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ddp_ladder.common.formats import shortened
from ddp_ladder.common.grouping import grouped
from ddp_ladder.gates.figures import EFFICIENCY, SAMPLES_PER_S, Column, columns
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.plan.fit import Fit
from ddp_ladder.settings.terms import Scale

WIDTH_IN, PANEL_IN, MARGIN_IN = 5.0, 2.7, 0.6  # narrow: its text can still be read on a phone and in print
MOST_LABELLED = 9  # scales: more have no room for their names and figures
MOST_INTERVAL = 1.5  # the end of a wider interval of efficiency is in the tables
LONGEST_NAME = 24  # of a variant
BESIDE = 0.03  # of the axis: between scales with the same number of GPUs
BEYOND = 0.05  # of a logarithmic axis: room for the markers at its ends

# Okabe and Ito: distinct with any colour vision; the markers are distinct without any colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
CROWDED = ("#9fabb7", ".")  # colour and marker of all other variants
INK, GREY, PALE, PAPER, BAD = "#1f2933", "#6b7785", "#d5dae0", "#ffffff", "#9b1c1c"
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
PARTS = {  # from the bottom up: what the training is for, then what it waits for
    "compute_s": "#0072B2",
    "rest_s": "#9aa5b1",
    "data_wait_s": "#E69F00",
    "exposed_comm_s": "#D55E00",
    "imbalance_s": "#CC79A7",
}
DARK = ("compute_s", "exposed_comm_s")  # with white text
LEAST_TEXT = 0.06  # of the panel's height: a lower part has no room for its figure

Thresholds = Mapping[str, float | None]  # min_efficiency by stage, a fraction
Look = tuple[str, str]  # colour and marker of a variant, the same in every panel


def drawn(figure: Figure) -> dict[str, bytes]:
    """Return a figure as SVG and as PNG of 200 dots per inch."""
    svg, png = io.BytesIO(), io.BytesIO()
    with rc_context(STYLE):  # not by savefig, which draws twice, once for the layout alone
        FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None})  # type: ignore[no-untyped-call]
        figure.set_dpi(200)
        FigureCanvasAgg(figure).print_png(png, metadata={"Software": None})  # type: ignore[no-untyped-call]
    return {"svg": svg.getvalue(), "png": png.getvalue()}


# --- What the plots of scales share.


def looks(points: Sequence[ScalePoint]) -> dict[str, Look]:
    """Return the look of each variant, in the order of the points; those beyond seven are grey."""
    names = dict.fromkeys(point.variant for point in points)
    return dict(zip(names, chain(zip(COLOURS, MARKERS, strict=True), repeat(CROWDED)), strict=False))


def _panels(
    points: Sequence[ScalePoint],
    draw: Callable[[Axes, Sequence[ScalePoint], Mapping[str, Look]], None],
    keys: Sequence[Line2D],
) -> Figure:
    """Return a figure with a panel per mode, below each other, and the legend above. draw: fills a panel."""
    modes = list(dict.fromkeys(point.mode for point in points)) or [""]
    with rc_context(STYLE):
        size = (WIDTH_IN, MARGIN_IN + PANEL_IN * len(modes))
        figure = Figure(figsize=size, layout="constrained", facecolor=PAPER)
        for mode, axes in zip(modes, figure.subplots(len(modes), 1, squeeze=False).flat, strict=True):
            axes.set_title(f"{mode} scaling" if len(modes) > 1 else "")
            draw(axes, [point for point in points if point.mode == mode], looks(points))
        if keys:
            figure.legend(handles=keys, loc="outside upper left", ncols=2 if len(keys) > 4 else 3, columnspacing=1.4)
    return figure


def show_message(axes: Axes, text: str) -> None:
    """Show a text where there is nothing to draw."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color=GREY, transform=axes.transAxes)


def legend_key(label: str, **style: Any) -> Line2D:
    """Return an entry of a legend; a space before an underscore, as matplotlib hides labels that begin with one."""
    return Line2D([], [], label=f" {label}" if label.startswith("_") else label, **style)


def _variant_keys(points: Sequence[ScalePoint]) -> list[Line2D]:
    look_of = looks(points)
    shown = [(shortened(name, LONGEST_NAME, "…"), look) for name, look in look_of.items() if look != CROWDED]
    shown += [(f"{more} other variants", CROWDED)] if (more := len(look_of) - len(shown)) else []
    keys = [legend_key(name, color=colour, marker=marker, linestyle="none") for name, (colour, marker) in shown]
    return keys if len(look_of) > 1 else []


def _draw_point(axes: Axes, place: float, column: Column, point: ScalePoint, look: Look) -> None:
    if (estimate := column.estimate(point)) is None:
        return
    (value, low, high), (colour, marker) = estimate, look
    style: dict[str, Any] = {"markersize": 6, "elinewidth": 1.3, "capsize": 3, "linestyle": "none", "zorder": 3}
    axes.errorbar([place], [value], yerr=[[value - low], [high - value]], color=colour, marker=marker, **style)


# --- Throughput.


def throughput_figure(points: Sequence[ScalePoint], units: str) -> Figure:
    """Return the plot of samples/s against the number of ``units`` ("GPUs"), both logarithmic, one panel per mode."""
    measured = [point for point in points if point.samples_per_s is not None]
    of_series = grouped(((point.mode, point.variant), point) for point in measured).values()
    drawn = {dashes for series in of_series for _, dashes in growth(series)}
    lines = {"-": f"more {units} in one node", "--": "more nodes"}
    keys = _variant_keys(points) if measured else []
    keys += [legend_key(text, color=GREY, linewidth=1.5, linestyle=to) for to, text in lines.items() if to in drawn]
    keys += [legend_key("ideal", color=GREY, **IDEAL)] if any(map(rate_per_gpu, of_series)) else []
    return _panels(points, lambda axes, own, styles: _throughput(axes, own, styles, units), keys)


def _throughput(axes: Axes, points: Sequence[ScalePoint], styles: Mapping[str, Look], units: str) -> None:
    measured = [point for point in points if point.samples_per_s is not None]
    if not measured:
        show_message(axes, "nothing measured yet")
        return
    sizes = sorted({point.world_size for point in measured})
    ends = [end for point in measured for end in SAMPLES_PER_S.estimate(point) or ()]
    ends.append(sizes[-1] * (rate_per_gpu(measured) or ends[0]))
    left, right = _around(sizes, 1.35, 1.5)
    axes.set(xlabel=units, ylabel=SAMPLES_PER_S.heading, yscale="log", xlim=(left, right))
    axes.set_xscale("log", base=2)
    axes.set_ylim(_around(ends, 1.25, 1.1))
    places = _places(measured, (right / left) ** BESIDE)
    for variant, look in styles.items():
        own = [point for point in measured if point.variant == variant]
        if rate := rate_per_gpu(own):
            axes.plot(sizes, [rate * size for size in sizes], color=GREY, zorder=1, **IDEAL)
        for line, dashes in growth(own):
            speeds = [point.samples_per_s or math.nan for point in line]
            axes.plot([places[p.scale] for p in line], speeds, color=look[0], linewidth=1.5, linestyle=dashes, zorder=2)
        for point in own:
            _draw_point(axes, places[point.scale], SAMPLES_PER_S, point, look)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if len(places) <= MOST_LABELLED:
        names = [", ".join(str(scale) for scale in places if scale.world_size == size) for size in sizes]
        axes.set_xticks(sizes, [f"{size}\n{name}" for size, name in zip(sizes, names, strict=True)])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5), numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(visible=True, axis="y")


def _around(values: Sequence[float], below: float, above: float) -> tuple[float, float]:
    """Return the ends of a logarithmic axis: so many times beyond the values, and at least a part of the axis."""
    least = (max(values) / min(values)) ** BEYOND
    return min(values) / max(below, least), max(values) * max(above, least)


def _places(points: Sequence[ScalePoint], beside: float) -> dict[Scale, float]:
    """Return where each scale stands on the axis; those with the same number of GPUs are this factor apart."""
    same = grouped((scale.world_size, scale) for scale in dict.fromkeys(point.scale for point in points))
    places = [(s, k - (len(scales) - 1) / 2) for scales in same.values() for k, s in enumerate(scales)]
    return {scale: scale.world_size * beside**place for scale, place in places}


def rate_per_gpu(points: Sequence[ScalePoint]) -> float | None:
    """Return the ideal of a series: samples/s per GPU at its baseline; None if there is none."""
    base = next((point for point in points if point.is_baseline), None)
    return None if base is None or base.samples_per_s is None else base.samples_per_s / base.world_size


def growth(points: Sequence[ScalePoint]) -> list[tuple[list[ScalePoint], str]]:
    """Return the lines to draw, with their style: solid within one node, dashed across nodes."""
    lines = [([point for point in points if point.nodes == 1], "-")]
    per_node = sorted({point.gpus_per_node for point in points})
    lines += [([point for point in points if point.gpus_per_node == gpus], "--") for gpus in per_node]
    return [(sorted(line, key=lambda p: p.world_size), style) for line, style in lines if len(line) > 1]


# --- Efficiency.


def efficiency_figure(points: Sequence[ScalePoint], thresholds: Thresholds) -> Figure:
    """Return the plot of efficiency at each scale in climbing order, with the gates' thresholds; a panel per mode."""
    keys = [*_variant_keys(points), legend_key("ideal", color=GREY, **IDEAL)] if points else []
    if any(thresholds.get(point.stage) is not None for point in points):
        keys.append(legend_key("asked by the gate", color=INK, linewidth=0.9))
    return _panels(points, lambda axes, own, styles: _efficiency(axes, own, styles, thresholds), keys)


def _efficiency(axes: Axes, points: Sequence[ScalePoint], styles: Mapping[str, Look], thresholds: Thresholds) -> None:
    scales = list(dict.fromkeys(point.scale for point in points))
    if not scales:
        show_message(axes, "nothing measured yet")
        return
    known = [point.efficiency for point in points if point.efficiency is not None]
    ends = [min(point.efficiency_high, MOST_INTERVAL) for point in points if point.efficiency_high is not None]
    axes.set(xlim=(-0.5, len(scales) - 0.5), ylim=(0, 1.05 * max([1.0, *known, *ends])), ylabel=EFFICIENCY.heading)
    axes.axhline(1, color=GREY, zorder=1, **IDEAL)
    names, box = list(styles), {"facecolor": PAPER, "linewidth": 0, "pad": 0.5}  # a figure hides the line behind it
    for point in points:
        middle = scales.index(point.scale)
        place = middle + (0.0 if len(names) == 1 else 0.5 * (names.index(point.variant) / (len(names) - 1) - 0.5))
        _draw_point(axes, place, EFFICIENCY, point, styles[point.variant])
        if (threshold := thresholds.get(point.stage)) is not None:
            axes.plot([middle - 0.5, middle + 0.5], [threshold] * 2, color=INK, linewidth=0.9, zorder=1.5)
        if point.efficiency is None and len(names) <= len(COLOURS):
            colour = GREY if point.status == "not run" else BAD
            axes.text(place, 0.03, point.status, rotation=90, ha="center", va="bottom", color=colour)
        elif point.efficiency is not None and len(names) == 1 and len(scales) <= MOST_LABELLED:
            at = (place, point.efficiency)
            axes.annotate(EFFICIENCY.shown(point), at, (8, -3), textcoords="offset points", bbox=box)
    _scale_axis(axes, [str(scale) for scale in scales])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: EFFICIENCY.text(value)))


def _scale_axis(axes: Axes, scales: Sequence[str]) -> None:
    step = math.ceil(len(scales) / MOST_LABELLED)
    axes.set_xticks(range(0, len(scales), step), scales[::step])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("scale: nodes x GPUs per node")
    axes.grid(visible=True, axis="y")


# --- Parts of a step.


def attribution_figure(points: Sequence[ScalePoint]) -> Figure:
    """Return the plot of the parts of a step at each scale in climbing order, the ideal step being 100 %.

    points: of one variant. The ideal step takes as long as the first scale for as many samples per rank.
    """
    known = {column.key: column for column in columns("attribution")}
    shown = [key for key in PARTS if any(_height(point) and getattr(point, key) for point in points)]
    style = {"marker": "s", "linestyle": "none", "markersize": 7}
    keys = [legend_key(f"{known[key].heading}, {known[key].unit}", color=PARTS[key], **style) for key in shown]
    return _panels(points, _attribution, [*keys, legend_key("ideal", color=INK, **IDEAL)] if shown else [])


def _height(point: ScalePoint) -> float | None:
    """Return the step time as a multiple of the ideal one; None if there is no ratio, or no part is known."""
    return 1 / point.efficiency if point.efficiency and point.rest_s is not None else None


def _attribution(axes: Axes, points: Sequence[ScalePoint], _: Mapping[str, Look]) -> None:
    heights = [_height(point) or 0.0 for point in points]
    if not any(heights):
        show_message(axes, f"no step has been compared with one at {points[0].baseline if points else '1x1'} yet")
        return
    known = {column.key: column for column in columns("csv")}
    top, bottoms = 1.12 * max(1.0, *heights), [0.0] * len(points)
    is_labelled = len(points) <= MOST_LABELLED
    for key, colour in PARTS.items():
        ratios = [height / (point.step_time_s or 1.0) for height, point in zip(heights, points, strict=True)]
        parts = [ratio * (getattr(point, key) or 0.0) for ratio, point in zip(ratios, points, strict=True)]
        bars = axes.bar(range(len(points)), parts, 0.62, bottoms, color=colour, edgecolor=PAPER, linewidth=0.6)
        if is_labelled:
            room = zip(points, parts, strict=True)
            texts = [known[key].shown(point) if part >= LEAST_TEXT * top else "" for point, part in room]
            axes.bar_label(bars, texts, label_type="center", color=PAPER if key in DARK else INK, zorder=5)
        bottoms = [bottom + part for bottom, part in zip(bottoms, parts, strict=True)]
    for place, point in enumerate(points):
        text = f"{known['step_time_s'].shown(point)} ms" if heights[place] and is_labelled else ""
        axes.annotate(text, (place, heights[place]), (0, 3), textcoords="offset points", ha="center", weight="bold")
        if not heights[place]:
            axes.text(place, 0.03 * top, point.status, rotation=90, ha="center", va="bottom", color=GREY)
    axes.set(xlim=(-0.5, len(points) - 0.5), ylim=(0, top), ylabel="step time / ideal step time")
    axes.axhline(1, color=INK, zorder=4, **IDEAL)
    _scale_axis(axes, [str(point.scale) for point in points])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: EFFICIENCY.text(value)))


# --- The search for the batch.


def fit_figure(fit: Fit) -> Figure:
    """Return the plot of samples/s and memory per GPU against the batch; batches that do not fit are crosses."""
    good = [trial for trial in fit.trials if trial.fits]
    batches = [trial.batch_per_gpu for trial in good]
    rows = (
        ("samples/s", [trial.samples_per_s or math.nan for trial in good]),
        ("memory per GPU (MB)", [(trial.peak_memory_bytes or math.nan) / 1e6 for trial in good]),
    )
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, MARGIN_IN + PANEL_IN), layout="constrained", facecolor=PAPER)
        for axes, (name, values) in zip(figure.subplots(2, 1, sharex=True), rows, strict=True):
            axes.plot(batches, values, color=COLOURS[0], marker=MARKERS[0], markerfacecolor=PAPER)
            axes.plot(fit.chosen, values[batches.index(fit.chosen)], color=COLOURS[0], marker=MARKERS[0])
            for trial in fit.trials:
                if not trial.fits:
                    axes.plot(trial.batch_per_gpu, 0, color=BAD, marker="x", clip_on=False)
            axes.set(ylabel=name, ylim=(0, None))
            axes.grid(visible=True, axis="y")
        axes.set_xscale("log", base=2)
        axes.set_xlabel("batch per GPU")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return figure
