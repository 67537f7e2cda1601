"""The plots of the report: throughput, efficiency, and the parts of a step.

Throughput and efficiency have a panel per mode, the ideal beside what was measured, and 95 % intervals. Scales with
the same number of GPUs are different points: 1x2 and 2x1 stand beside each other on the GPU axis, and never share a
line. A line connects growth of one kind: more GPUs in one node, or more nodes with the same GPUs in each.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.common.formats import count, grouped, shortened
from ddp_ladder.gates.figures import COLUMN, EFFICIENCY, SAMPLES_PER_S, STEP_TIME, Column
from ddp_ladder.gates.points import Key, ScalePoint
from ddp_ladder.measuring.node_usage import notes_on, read_node_samples, timelines_of
from ddp_ladder.nodes.usage import NodeSamples, RunPhase, Timeline, Values
from ddp_ladder.records.raw_files import read_raw_run
from ddp_ladder.records.record import Record
from ddp_ladder.report.document import Block
from ddp_ladder.settings.terms import REFERENCE_VARIANT, Scale

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
PARTS: dict[Key, str] = {  # from the bottom up: what the training is for, then what it waits for
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
    if (estimate := column.of(point)) is None:
        return
    value, (low, high), (colour, marker) = estimate.value, estimate.ends, look
    style: dict[str, Any] = {"markersize": 6, "elinewidth": 1.3, "capsize": 3, "linestyle": "none", "zorder": 3}
    axes.errorbar([place], [value], yerr=[[value - low], [high - value]], color=colour, marker=marker, **style)


# --- Throughput.


def throughput_figure(points: Sequence[ScalePoint], units: str) -> Figure:
    """Return the plot of samples/s against the number of ``units`` ("GPUs"), both logarithmic, one panel per mode."""
    measured = [point for point in points if point["samples_per_s"] is not None]
    of_series = grouped(((point.mode, point.variant), point) for point in measured).values()
    drawn = {dashes for series in of_series for _, dashes in growth(series)}
    lines = {"-": f"more {units} in one node", "--": "more nodes"}
    keys = _variant_keys(points) if measured else []
    keys += [legend_key(text, color=GREY, linewidth=1.5, linestyle=to) for to, text in lines.items() if to in drawn]
    keys += [legend_key("ideal", color=GREY, **IDEAL)] if any(map(rate_per_gpu, of_series)) else []
    return _panels(points, lambda axes, own, styles: _throughput(axes, own, styles, units), keys)


def _throughput(axes: Axes, points: Sequence[ScalePoint], styles: Mapping[str, Look], units: str) -> None:
    measured = [point for point in points if point.rate]
    rates = [point.rate for point in measured if point.rate]
    if not measured:
        show_message(axes, "nothing measured yet")
        return
    sizes = sorted({point.world_size for point in measured})
    ends = [end for rate in rates for end in (rate.value, *rate.ends)]
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
            speeds = [point["samples_per_s"] or math.nan for point in line]
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
    return None if base is None or base["samples_per_s"] is None else base["samples_per_s"] / base.world_size


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
    known = [efficiency for point in points if (efficiency := point.of("efficiency"))]
    highest = [max(each.value, min(each.ends[1], MOST_INTERVAL)) for each in known]
    axes.set(xlim=(-0.5, len(scales) - 0.5), ylim=(0, 1.05 * max([1.0, *highest])), ylabel=EFFICIENCY.heading)
    axes.axhline(1, color=GREY, zorder=1, **IDEAL)
    names, box = list(styles), {"facecolor": PAPER, "linewidth": 0, "pad": 0.5}  # a figure hides the line behind it
    for point in points:
        middle = scales.index(point.scale)
        place = middle + (0.0 if len(names) == 1 else 0.5 * (names.index(point.variant) / (len(names) - 1) - 0.5))
        _draw_point(axes, place, EFFICIENCY, point, styles[point.variant])
        if (threshold := thresholds.get(point.stage)) is not None:
            axes.plot([middle - 0.5, middle + 0.5], [threshold] * 2, color=INK, linewidth=0.9, zorder=1.5)
        if point["efficiency"] is None and len(names) <= len(COLOURS):
            colour = GREY if point.status == "not run" else BAD
            axes.text(place, 0.03, point.status, rotation=90, ha="center", va="bottom", color=colour)
        elif point["efficiency"] is not None and len(names) == 1 and len(scales) <= MOST_LABELLED:
            at = (place, point["efficiency"])
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
    shown = [key for key in PARTS if any(_height(point) and point[key] for point in points)]
    style = {"marker": "s", "linestyle": "none", "markersize": 7}
    keys = [legend_key(f"{COLUMN[key].heading}, {COLUMN[key].unit}", color=PARTS[key], **style) for key in shown]
    return _panels(points, _attribution, [*keys, legend_key("ideal", color=INK, **IDEAL)] if shown else [])


def _height(point: ScalePoint) -> float | None:
    """Return the step time as a multiple of the ideal one; None if there is no ratio, or no part is known."""
    return 1 / point["efficiency"] if point["efficiency"] and point["rest_s"] is not None else None


def _attribution(axes: Axes, points: Sequence[ScalePoint], _: Mapping[str, Look]) -> None:
    heights = [_height(point) or 0.0 for point in points]
    if not any(heights):
        show_message(axes, f"no step has been compared with one at {points[0].baseline if points else '1x1'} yet")
        return
    top, bottoms = 1.12 * max(1.0, *heights), [0.0] * len(points)
    is_labelled = len(points) <= MOST_LABELLED
    for key, colour in PARTS.items():
        ratios = [height / (point["step_time_s"] or 1.0) for height, point in zip(heights, points, strict=True)]
        parts = [ratio * (point[key] or 0.0) for ratio, point in zip(ratios, points, strict=True)]
        bars = axes.bar(range(len(points)), parts, 0.62, bottoms, color=colour, edgecolor=PAPER, linewidth=0.6)
        if is_labelled:
            room = zip(points, parts, strict=True)
            texts = [COLUMN[key].shown(point) if part >= LEAST_TEXT * top else "" for point, part in room]
            axes.bar_label(bars, texts, label_type="center", color=PAPER if key in DARK else INK, zorder=5)
        bottoms = [bottom + part for bottom, part in zip(bottoms, parts, strict=True)]
    for place, point in enumerate(points):
        text = f"{STEP_TIME.shown(point)} ms" if heights[place] and is_labelled else ""
        axes.annotate(text, (place, heights[place]), (0, 3), textcoords="offset points", ha="center", weight="bold")
        if not heights[place]:
            axes.text(place, 0.03 * top, point.status, rotation=90, ha="center", va="bottom", color=GREY)
    axes.set(xlim=(-0.5, len(points) - 0.5), ylim=(0, top), ylabel="step time / ideal step time")
    axes.axhline(1, color=INK, zorder=4, **IDEAL)
    _scale_axis(axes, [str(point.scale) for point in points])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: EFFICIENCY.text(value)))


# --- The picture of what a run used over time: GPUs, CPUs, network and memory, in the phases of its training.
# There is one for each scale: of the first run of the default variant that was sampled.


FOLDER = "usage"
USAGE_WIDTH_IN, USAGE_PANEL_IN = 4.4, 0.95  # three beside each other on a screen, one on a phone
BINS = 240  # of time: each shows its lowest, median and highest value
LINES = (*COLOURS, GREY)
LEGEND_CHARACTERS, KEY_CHARACTERS, LEGEND_ROW_IN = 60, 5, 0.17  # of a row, of a line and its gaps; a row's height
MOST_LINES = 8  # GPUs in a panel; more cannot be told apart and become one band
FIRST_RANK = (0,)
MEGA, GIGA = 1e6, 1e9
SHADES: Mapping[RunPhase, str] = {
    "start-up": "#dfe3e8",
    "warm-up": "#fbe9b7",
    "validation": "#c3daf0",
    "between epochs": "#efc9b8",
    "end": "#d9cfe3",
}
TIME_UNITS = ((180.0, 1.0, "s"), (10_800.0, 60.0, "min"), (float("inf"), 3600.0, "h"))  # up to (s), size (s), name


Trace = tuple[Values, Values]  # of a device: unix times, and values, nan where one is not known


@dataclass(frozen=True)
class Chart:
    """One axis of the picture."""

    title: str
    kinds: Mapping[str, Sequence[Trace]]  # of each device, by what the values are
    top: float | None = None  # of the axis; None: the highest value
    of_gpus: bool = False  # its lines are those of the other panels of GPUs, and named once, above all panels


def draw_usage(results: Path, runs: Sequence[Record]) -> tuple[list[Block], dict[str, bytes]]:
    """Return the pictures of one run of each scale with what could not be drawn, and their files by path.

    runs: in the order of the tables.
    """
    pictures: dict[Scale, Block] = {}
    files: dict[str, bytes] = {}
    notes: list[str] = []
    for record in runs:
        spec = record.spec
        if spec.variant != REFERENCE_VARIANT or spec.scale in pictures or not (record.usage and record.usage.nodes):
            continue
        try:
            nodes, timeline = _read(RunRecords(results).directory(spec), record, notes)
        except (OSError, ValueError) as error:
            notes.append(f"{spec.name}: no picture, as its files cannot be read: {error}")
            continue
        if shown := charts(nodes):
            name = f"{FOLDER}/usage_{spec.name.replace('/', '_')}"
            files |= {f"{name}.{kind}": content for kind, content in drawn(usage_figure(shown, timeline)).items()}
            title = f"{spec.scale} {spec.mode}, r{spec.repeat}"
            pictures[spec.scale] = Block(f"What {title} used over time. {_caption(nodes)}", picture=name, style="usage")
    return [*pictures.values(), *([Block(items=tuple(notes), style="notes")] if notes else [])], files


def _read(directory: RunDirectory, record: Record, notes: list[str]) -> tuple[list[NodeSamples], Timeline]:
    """Return the samples of a run's nodes and the timeline of its first node: no record has them.

    Raises OSError or ValueError if its files have been damaged since.
    """
    raw = read_raw_run(directory, FIRST_RANK)  # the others' steps may be many, and are not drawn
    by_node, lacking = read_node_samples(raw)
    nodes = [samples for samples in by_node.values() if len(samples)]
    notes += notes_on(lacking)
    warmup_steps = record.timing.warmup_steps if record.timing else record.spec.warmup_steps
    return nodes, timelines_of(raw, warmup_steps)[nodes[0].about.node_rank if nodes else 0]


def _caption(nodes: Sequence[NodeSamples]) -> str:
    gpus = sum(len(node.gpus) for node in nodes)
    where = count(len(nodes), "node")
    words = f"{count(gpus, 'GPU')} on {where}." if gpus else f"{where}, no GPU."
    return f"{words} Bands go from the lowest to the highest value, lines are medians."


def charts(nodes: Sequence[NodeSamples]) -> list[Chart]:
    """Return the charts of a run from the top; one without any known value is left out."""
    known = (replace(chart, kinds=_known(chart.kinds)) for chart in (*_of_gpus(nodes), *_of_nodes(nodes)))
    return [chart for chart in known if chart.kinds]


def _of_gpus(nodes: Sequence[NodeSamples]) -> Iterator[Chart]:
    several = len(nodes) > 1
    abouts = [gpu.about for node in nodes for gpu in node.gpus]

    def of(quantity: str, size: float = 1.0) -> dict[str, list[Trace]]:
        known = [(node, gpu) for node in nodes for gpu in node.gpus if quantity in gpu.columns]
        traces = [(node.times_s, gpu.columns[quantity] / size) for node, gpu in known]
        if len(known) > MOST_LINES:
            return {f"{len(known)} GPUs": traces}
        names = (f"{node.about.node} " * several + f"GPU {gpu.about.index}" for node, gpu in known)
        return {name: [trace] for name, trace in zip(names, traces, strict=True)}

    memory = max((gpu.memory_bytes or 0 for gpu in abouts), default=0) / GIGA
    limit = max((gpu.power_limit_w or 0 for gpu in abouts), default=0)
    yield Chart("GPU busy (a kernel ran), %", of("busy_fraction", 0.01), 100, of_gpus=True)
    yield Chart(f"GPU memory, GB of {memory:.0f}", of("memory_used_bytes", GIGA), of_gpus=True)
    yield Chart(f"GPU power, W of {limit:.0f}" if limit else "GPU power, W", of("power_w"), of_gpus=True)


def _of_nodes(nodes: Sequence[NodeSamples]) -> Iterator[Chart]:
    def of(size: float, quantities: Mapping[str, str]) -> dict[str, list[Trace]]:
        return {
            kind: [(node.times_s, node.columns[key] / size) for node in nodes if key in node.columns]
            for kind, key in quantities.items()
        }

    yield Chart("CPU, %", of(0.01, {"mean": "cpu_fraction", "busiest": "cpu_busiest_fraction"}), 100)
    for title, name in (("Network", "network"), ("IB or Slingshot", "fabric")):
        rates = {"received": f"{name}_received_bytes_per_s", "sent": f"{name}_sent_bytes_per_s"}
        yield Chart(f"{title}, MB/s", of(MEGA, rates))
    memory = max((node.about.memory_bytes or 0 for node in nodes), default=0) / GIGA
    used = {"training": "training_rss_bytes", "whole node": "node_memory_used_bytes"}
    yield Chart(f"Host memory, GB of {memory:.0f}", of(GIGA, used))


def _known(kinds: Mapping[str, Sequence[Trace]]) -> dict[str, list[Trace]]:
    known = {kind: [trace for trace in traces if not np.isnan(trace[1]).all()] for kind, traces in kinds.items()}
    return {kind: traces for kind, traces in known.items() if traces}


def usage_figure(shown: Sequence[Chart], timeline: Timeline) -> Figure:
    """Return the panels below each other on one axis of time, with the phases of the training shaded."""
    begins_s = [times_s[0] for chart in shown for traces in chart.kinds.values() for times_s, _ in traces]
    begin_s = min(*begins_s, timeline.spans[0].begin_s)
    end_s = max(span.end_s for span in timeline.spans)
    size_s, unit = next((size, name) for most, size, name in TIME_UNITS if end_s - begin_s <= most)
    with rc_context(STYLE):
        gpus = next((chart.kinds for chart in shown if chart.of_gpus and len(chart.kinds) > 1), {})
        columns = max(1, min(4, LEGEND_CHARACTERS // (KEY_CHARACTERS + max(map(len, gpus), default=0))))
        height_in = 0.9 + USAGE_PANEL_IN * len(shown) + LEGEND_ROW_IN * (len(gpus) // columns)
        figure = Figure(figsize=(USAGE_WIDTH_IN, height_in), layout="constrained", facecolor=PAPER)
        axes = figure.subplots(len(shown), 1, squeeze=False, sharex=True)[:, 0]
        shaded = [span for span in timeline.spans if span.phase in SHADES]
        for chart, own in zip(shown, axes, strict=True):
            _draw(own, chart, begin_s, size_s)
            for span in shaded:
                ends = ((span.begin_s - begin_s) / size_s, (span.end_s - begin_s) / size_s)
                own.axvspan(*ends, color=SHADES[span.phase], linewidth=0, zorder=0)
        axes[-1].set_xlim(0, (end_s - begin_s) / size_s)
        axes[-1].set_xlabel(f"time since the start of the run, {unit}")
        phases = {span.phase for span in shaded}
        style: dict[str, Any] = {"edgecolor": GREY, "linewidth": 0.4}
        keys: list[Artist] = [
            Patch(facecolor=SHADES[phase], label=phase, **style) for phase in SHADES if phase in phases
        ]
        keys += [legend_key(gpu, color=colour, linewidth=1.5) for gpu, colour in zip(gpus, LINES, strict=False)]
        figure.legend(handles=keys, loc="outside upper left", ncols=columns, columnspacing=0.9, handlelength=1.1)
    return figure


def _draw(axes: Axes, chart: Chart, begin_s: float, size_s: float) -> None:
    keys, highest = [], 0.0
    for (kind, traces), colour in zip(chart.kinds.items(), LINES, strict=False):
        times_s, low, median, high = in_bins(traces)
        times = (times_s - begin_s) / size_s
        axes.fill_between(times, low, high, color=colour, alpha=0.28, linewidth=0, zorder=2)
        axes.plot(times, median, color=colour, linewidth=1.0, zorder=3)
        keys.append(legend_key(kind, color=colour, linewidth=1.5))
        highest = max(highest, np.nanmax(high))
    axes.set_ylim(0, 1.05 * (chart.top or highest or 1.0))
    axes.set_title(chart.title)
    axes.locator_params(axis="y", nbins=3)
    axes.grid(visible=True, axis="y")
    if len(keys) > 1 and not chart.of_gpus:
        style = {"ncols": 4, "handlelength": 1.1, "columnspacing": 0.8, "borderaxespad": 0, "fontsize": 8}
        axes.legend(handles=keys, loc="lower right", bbox_to_anchor=(1.0, 1.02), **style)


def in_bins(traces: Sequence[Trace]) -> tuple[Values, Values, Values, Values]:
    """Return the middle of each bin of time, and the lowest, the median and the highest of all traces in it.

    No peak and no dip is lost; nan where no value of a bin is known.
    """
    import pandas as pd  # half a second, which a report without pictures of samples need not pay

    times_s, values = map(np.concatenate, zip(*traces, strict=True))
    bins = min(BINS, max(len(own_s) for own_s, _ in traces))
    begin_s = times_s.min()
    width_s = (times_s.max() - begin_s) / bins or 1.0
    bin_of = np.minimum((times_s - begin_s) // width_s, bins - 1)
    binned = pd.Series(values).groupby(begin_s + width_s * (bin_of + 0.5)).agg(["min", "median", "max"])
    low, median, high = binned.to_numpy().T
    return binned.index.to_numpy(), low, median, high
