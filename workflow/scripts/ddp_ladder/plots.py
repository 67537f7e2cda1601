"""Throughput and efficiency as pictures: one panel per mode, ideal beside measured, 95 % intervals.

Shapes of one size are different points: 1x2 and 2x1 share a place on the GPU axis, never a line.
Lines follow growth of one kind: more GPUs in one node, or more nodes with the same GPUs in each.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ddp_ladder.formats import percent, stage_name
from ddp_ladder.scaling import BASELINE, ScalePoint
from ddp_ladder.settings import Scale

# Okabe and Ito: told apart with any colour vision; the markers tell them apart without any colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, GREY, PALE, BAND = "#1f2933", "#6b7785", "#d5dae0", "#f4f6f8"
WIDTH_IN, PANEL_IN, MARGIN_IN = 6.1, 3.35, 0.62
ROOM = 1.35  # factor of empty space beyond the outermost points of a logarithmic axis
STYLE: dict[Any, Any] = {  # matplotlib types the keys as a literal of all its settings
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture on every machine
    "font.size": 9,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.labelpad": 6,  # a page's own font may be wider
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "text.parse_math": False,  # a variant may have a dollar sign in its name
    "svg.hashsalt": "ddp-ladder",  # fixed ids: the same records give the same file
}
Format = Literal["svg", "png"]
Thresholds = Mapping[str, float | None]  # min_efficiency by stage, a fraction


@dataclass(frozen=True)
class Look:
    """How a variant is drawn, the same in every panel."""

    colour: str
    marker: str


def looks(points: Sequence[ScalePoint]) -> dict[str, Look]:
    """By variant, in the order of the points; after seven, colours and markers repeat."""
    names = dict.fromkeys(point.variant for point in points)
    return {
        name: Look(COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]) for index, name in enumerate(names)
    }


def throughput_figure(points: Sequence[ScalePoint], units: str) -> Figure:
    """Samples/s against the number of ``units`` ("GPUs"), both logarithmic, one panel per mode."""
    with rc_context(STYLE):
        figure, panels = _panels(points)
        for mode, axes in panels.items():
            _throughput_panel(axes, _of_mode(points, mode), looks(points), units)
        _finish(figure, points, _throughput_legend(points, units))
    return figure


def efficiency_figure(points: Sequence[ScalePoint], thresholds: Thresholds) -> Figure:
    """Efficiency at each scale in climbing order, with the gates' thresholds; a panel per mode."""
    with rc_context(STYLE):
        figure, panels = _panels(points)
        for mode, axes in panels.items():
            _efficiency_panel(axes, _of_mode(points, mode), looks(points), thresholds)
        _finish(figure, points, _efficiency_legend(points, thresholds))
    return figure


def render(figure: Figure, kind: Format, *, text_as_text: bool = False) -> bytes:
    """The picture as a file. text_as_text: SVG text that takes the font of the page around it."""
    buffer = io.BytesIO()
    style = {**STYLE, "svg.fonttype": "none" if text_as_text else "path"}
    with rc_context(style):
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
    return buffer.getvalue()


def inline_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """The picture as an element for an HTML page: own ids, no prologue, no metadata.

    title, description: plain text, escaped here.
    """
    text = render(figure, "svg", text_as_text=True).decode()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = text.replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    text = text.replace("*{", f"#{name} *{{")  # its style sheet must not reach the page
    head, body = text.split(">", 1)
    head = re.sub(r'\s(width|height|version|xmlns:xlink)="[^"]*"', "", head)
    head += f' id="{name}" role="img" aria-labelledby="{name}-title {name}-desc"'
    words = f'<title id="{name}-title">{_escaped(title)}</title>'
    words += f'<desc id="{name}-desc">{_escaped(description)}</desc>'
    return f"{head}>{words}{body}".replace("xlink:href", "href")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _of_mode(points: Sequence[ScalePoint], mode: str) -> list[ScalePoint]:
    return [point for point in points if point.mode == mode]


def _panels(points: Sequence[ScalePoint]) -> tuple[Figure, dict[str, Axes]]:
    """Weak and strong below each other, never in one panel."""
    modes = list(dict.fromkeys(point.mode for point in points)) or [""]
    figure = Figure(
        figsize=(WIDTH_IN, MARGIN_IN + PANEL_IN * len(modes)),
        layout="constrained",
        facecolor="white",
    )
    axes = figure.subplots(len(modes), 1, squeeze=False)[:, 0]
    for mode, panel in zip(modes, axes, strict=True):
        if len(modes) > 1:
            panel.set_title(f"{mode} scaling")
    return figure, dict(zip(modes, axes, strict=True))


def _finish(figure: Figure, points: Sequence[ScalePoint], legend: Sequence[Line2D]) -> None:
    if legend:
        figure.legend(handles=legend, loc="outside upper left", ncols=min(4, len(legend)), columnspacing=1.4)


def _message(axes: Axes, text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color=GREY, transform=axes.transAxes)


def _key(label: str, **style: Any) -> Line2D:
    return Line2D([], [], label=label, **style)


def _variant_keys(points: Sequence[ScalePoint]) -> list[Line2D]:
    return [
        _key(_plain(name), color=look.colour, marker=look.marker, linestyle="none", markersize=6)
        for name, look in looks(points).items()
    ]


def _plain(text: str) -> str:
    """A label as it is: matplotlib hides those that begin with an underscore."""
    return f" {text}" if text.startswith("_") else text


# Throughput


def _throughput_panel(axes: Axes, points: Sequence[ScalePoint], styles: Mapping[str, Look], units: str) -> None:
    measured = [point for point in points if point.samples_per_s is not None]
    if not measured:
        _message(axes, "nothing measured yet")
        return
    sizes = sorted({point.world_size for point in measured})
    low_x, high_x = sizes[0] / ROOM, sizes[-1] * ROOM
    for variant, look in styles.items():
        own = [point for point in measured if point.variant == variant]
        _ideal_line(axes, own, look if len(styles) > 1 else Look(GREY, ""), sizes[-1] * ROOM)
        _growth_lines(axes, own, look)
        for point in own:
            _throughput_marker(axes, point, look)
    _name_shapes(axes, measured)
    axes.set(xscale="log", yscale="log", xlim=(low_x, high_x), xlabel=units)
    axes.set_ylabel("samples/s")
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    _plain_log_ticks(axes, measured)


def _ideal_line(axes: Axes, own: Sequence[ScalePoint], look: Look, until: float) -> None:
    base = next((point for point in own if point.scale == BASELINE), None)
    if base is None or base.samples_per_s is None:
        return
    ends = (1, until)
    ideal = [base.samples_per_s * n for n in ends]
    axes.plot(ends, ideal, color=look.colour, linewidth=0.9, linestyle=(0, (1, 1.6)), zorder=1)


def _growth_lines(axes: Axes, own: Sequence[ScalePoint], look: Look) -> None:
    for line, dashes in growth(own):
        rates = [point.samples_per_s or math.nan for point in line]
        sizes = [point.world_size for point in line]
        axes.plot(sizes, rates, color=look.colour, linewidth=1.5, linestyle=dashes, zorder=2)


def growth(points: Sequence[ScalePoint]) -> list[tuple[list[ScalePoint], str]]:
    """Lines to draw, with their style: solid within one node, dashed where nodes are added."""
    within = sorted((p for p in points if p.nodes == 1), key=lambda point: point.gpus_per_node)
    lines = [(within, "-")]
    for gpus in sorted({point.gpus_per_node for point in points}):
        column = [point for point in points if point.gpus_per_node == gpus]
        lines.append((sorted(column, key=lambda point: point.nodes), "--"))
    return [(line, style) for line, style in lines if len(line) > 1]


def _throughput_marker(axes: Axes, point: ScalePoint, look: Look) -> None:
    rate = point.samples_per_s or math.nan
    low, high = point.samples_per_s_low or rate, point.samples_per_s_high or rate
    axes.errorbar(
        point.world_size,
        rate,
        yerr=[[rate - low], [high - rate]],
        **_marker(point, look),
    )


def _marker(point: ScalePoint, look: Look) -> dict[str, Any]:
    """Full within one node, hollow across nodes."""
    return {
        "color": look.colour,
        "marker": look.marker,
        "markersize": 6.5,
        "markerfacecolor": look.colour if point.nodes == 1 else "white",
        "markeredgewidth": 1.4,
        "elinewidth": 1.3,
        "capsize": 3,
        "linestyle": "none",
        "zorder": 3,
    }


def _name_shapes(axes: Axes, points: Sequence[ScalePoint]) -> None:
    """Write each shape once, below right of its lowest point (the first: left); a faster twin's goes above left."""
    lowest: dict[Scale, ScalePoint] = {}
    for point in points:
        known = lowest.get(point.scale)
        if known is None or (point.samples_per_s or 0) < (known.samples_per_s or 0):
            lowest[point.scale] = point
    first = min(point.world_size for point in points)
    for size in {point.world_size for point in points}:
        twins = [point for point in lowest.values() if point.world_size == size]
        twins.sort(key=lambda point: point.samples_per_s or 0)
        for index, point in enumerate(twins):
            above, left = index > 0, index > 0 or size == first  # lines lead to the right from the first
            axes.annotate(
                str(point.scale),
                (point.world_size, point.samples_per_s or 1),
                xytext=(-8 if left else 8, 6 if above else -9),
                textcoords="offset points",
                ha="right" if left else "left",
                fontsize=8.5,
                color=GREY,
                bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6},
            )


def _plain_log_ticks(axes: Axes, points: Sequence[ScalePoint]) -> None:
    """Plain numbers at round places, some five of them however wide the range is."""
    rates = [point.samples_per_s for point in points if point.samples_per_s is not None]
    low, high = min(rates) / 1.5, max(rates) * 1.5
    ideals = [p.samples_per_s * 1.1 for p in points if p.samples_per_s and p.scale == BASELINE]
    high = max([high, *(ideal * max(p.world_size for p in points) for ideal in ideals)])
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator(round_ticks(low, high)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain_number(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(visible=True, axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)


def round_ticks(low: float, high: float) -> list[float]:
    """Round numbers within low..high (both > 0), as fine as at most seven of them allow."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ladders: tuple[tuple[float, ...], ...] = (
        (1, 1.5, 2, 3, 4, 5, 6, 8),
        (1, 2, 3, 5),
        (1, 2, 5),
        (1, 3),
        (1,),
    )
    for ladder in ladders:
        ticks = [step * 10.0**decade for decade in decades for step in ladder]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= 7:
            return ticks
    return ticks[:: math.ceil(len(ticks) / 7)]


def plain_number(value: float) -> str:
    """A tick as people write it, never as a power of ten."""
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"


def _throughput_legend(points: Sequence[ScalePoint], units: str) -> list[Line2D]:
    measured = [point for point in points if point.samples_per_s is not None]
    if not measured:
        return []
    several = len(looks(points)) > 1
    keys = _variant_keys(points) if several else []
    colour = GREY if several else COLOURS[0]
    lines = [
        style
        for name in looks(measured)
        for mode in ("weak", "strong")
        for _, style in growth([p for p in measured if (p.variant, p.mode) == (name, mode)])
    ]
    if "-" in lines:
        keys.append(_key(f"more {units} in one node", color=colour, linewidth=1.5))
    if "--" in lines:
        keys.append(_key("more nodes", color=colour, linewidth=1.5, linestyle="--"))
    keys.append(_key("ideal", color=GREY, linewidth=0.9, linestyle=(0, (1, 1.6))))
    return keys


# Efficiency


def _efficiency_panel(
    axes: Axes,
    points: Sequence[ScalePoint],
    styles: Mapping[str, Look],
    thresholds: Thresholds,
) -> None:
    scales = list(dict.fromkeys(point.scale for point in points))
    if not scales:
        _message(axes, "nothing measured yet")
        return
    places = {scale: float(index) for index, scale in enumerate(scales)}
    highs = [point.efficiency_high for point in points if point.efficiency_high is not None]
    top = max(1.05, *(1.05 * high for high in highs), 0)
    axes.set(xlim=(-0.5, len(scales) - 0.5), ylim=(0, top + 0.09))
    _stage_bands(axes, points, places, thresholds)
    axes.axhline(1, color=GREY, linewidth=0.9, linestyle=(0, (1, 1.6)), zorder=1)
    names = list(styles)
    for point in points:
        shift = _dodge(names.index(point.variant), len(names))
        _efficiency_marker(axes, point, places[point.scale] + shift, styles[point.variant], len(names))
    axes.set_xticks(list(places.values()), [str(scale) for scale in scales])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("scale: nodes x GPUs per node")
    axes.set_ylabel("efficiency")
    ticks = [tick / 5 for tick in range(math.floor(5 * top) + 1)]
    axes.set_yticks(ticks, [percent(tick) for tick in ticks])
    axes.grid(visible=True, axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)


def _dodge(index: int, count: int) -> float:
    """Place of a variant beside the others at one scale, within the middle half of its column."""
    return 0.0 if count == 1 else 0.5 * (index / (count - 1) - 0.5)


def _stage_bands(
    axes: Axes,
    points: Sequence[ScalePoint],
    places: Mapping[Scale, float],
    thresholds: Thresholds,
) -> None:
    """One band per stage with its name on top and its gate's threshold as a thin line."""
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
    value = point.efficiency
    low, high = point.efficiency_low or value, point.efficiency_high or value
    axes.errorbar(place, value, yerr=[[value - low], [high - value]], **_marker(point, look))
    if variants == 1 and point.world_size > 1:
        axes.annotate(
            percent(value),
            (place, value),
            xytext=(8, 0),
            textcoords="offset points",
            ha="left",
            va="center",
            fontsize=8.5,
        )


def _efficiency_legend(points: Sequence[ScalePoint], thresholds: Thresholds) -> list[Line2D]:
    if not points:
        return []
    keys = _variant_keys(points) if len(looks(points)) > 1 else []
    shapes: Iterable[tuple[str, str]] = (("one node", COLOURS[0]), ("several nodes", "white"))
    several = len(looks(points)) > 1
    for label, face in shapes:
        edge = GREY if several else COLOURS[0]
        fill = face if face == "white" else edge
        keys.append(_key(label, color=edge, marker="o", linestyle="none", markerfacecolor=fill, markersize=6))
    keys.append(_key("ideal", color=GREY, linewidth=0.9, linestyle=(0, (1, 1.6))))
    if any(thresholds.get(point.stage) is not None for point in points):
        keys.append(_key("asked by the gate", color=INK, linewidth=0.9))
    return keys
