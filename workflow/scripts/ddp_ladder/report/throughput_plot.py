"""The plot of throughput against GPUs, on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ddp_ladder.gates.figures import SAMPLES_PER_S
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.report.plots import (
    Look,
    draw_crowd,
    draw_marker,
    large_crowd,
    legend_colour,
    legend_key,
    looks,
    panel_figure,
    show_message,
    spaced,
    variant_keys,
)
from ddp_ladder.report.style import GREY, HALF, IDEAL, PALE, PAPER
from ddp_ladder.settings.terms import Scale

MOST_NAMED = 11  # sizes on the axis
ROOM = 1.35  # factor of empty space beyond the outermost points of a logarithmic axis
ROOM_LEFT = 0.15  # of the axis at least, for the name of the first point


def throughput_figure(points: Sequence[ScalePoint], units: str) -> Figure:
    """Return the plot of samples/s against the number of ``units`` ("GPUs"), both logarithmic, one panel per mode."""
    return panel_figure(
        points,
        lambda axes, of_mode, styles: _throughput_panel(axes, of_mode, styles, units),
        lambda: _throughput_legend(points, units),
    )


def _throughput_panel(axes: Axes, points: Sequence[ScalePoint], styles: Mapping[str, Look], units: str) -> None:
    measured = [point for point in points if point.samples_per_s is not None]
    if not measured:
        show_message(axes, "nothing measured yet")
        return
    sizes = sorted({point.world_size for point in measured})
    low_x, high_x = sizes[0] / max(ROOM, (sizes[-1] / sizes[0]) ** ROOM_LEFT), sizes[-1] * ROOM
    crowd = large_crowd(measured, styles)
    for variant, look in styles.items():
        own = [point for point in measured if point.variant == variant]
        if not look.in_crowd:
            _ideal_line(axes, own, look if len(styles) > 1 else Look(GREY, ""), sizes[-1] * ROOM)
        _growth_lines(axes, own, look)
        for point in own if variant not in crowd else ():
            draw_marker(axes, point.world_size, SAMPLES_PER_S, point, look)
    draw_crowd(axes, SAMPLES_PER_S, [(point.world_size, point) for point in measured if point.variant in crowd], styles)
    _name_shapes(axes, measured)
    axes.set(xscale="log", yscale="log", xlim=(low_x, high_x), xlabel=units)
    axes.set_ylabel(SAMPLES_PER_S.heading)
    axes.xaxis.set_major_locator(FixedLocator([sizes[index] for index in with_room(sizes)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    _plain_log_ticks(axes, measured)


def _ideal_line(axes: Axes, own: Sequence[ScalePoint], look: Look, until: float) -> None:
    """Draw the ideal, and half of it, from the smallest scale that compares with the largest."""
    rate = rate_per_gpu(own)
    if rate is None:
        return
    ends = (1, until)
    axes.plot(ends, [rate * n for n in ends], color=look.colour, zorder=1, **IDEAL)
    axes.plot(ends, [rate * n / 2 for n in ends], color=look.colour, zorder=1, **HALF)


def rate_per_gpu(points: Sequence[ScalePoint]) -> float | None:
    """Return the ideal of a series: samples/s per GPU at the baseline of its largest scale; None if there is none."""
    largest = max((point for point in points if point.smallest_baseline), key=lambda p: p.world_size, default=None)
    name = largest.smallest_baseline if largest else next((point.baseline for point in points), "")
    base = next((point for point in points if str(point.scale) == name), None)
    return None if base is None or base.samples_per_s is None else base.samples_per_s / base.world_size


def _growth_lines(axes: Axes, own: Sequence[ScalePoint], look: Look) -> None:
    for line, dashes in growth(own):
        rates = [point.samples_per_s or math.nan for point in line]
        sizes = [point.world_size for point in line]
        axes.plot(
            sizes,
            rates,
            color=look.colour,
            linewidth=0.7 if look.in_crowd else 1.5,
            linestyle=dashes,
            zorder=look.zorder - 1,
        )


def growth(points: Sequence[ScalePoint]) -> list[tuple[list[ScalePoint], str]]:
    """Return the lines to draw, with their style: solid within one node, dashed across nodes."""
    within = sorted((p for p in points if p.nodes == 1), key=lambda point: point.gpus_per_node)
    lines = [(within, "-")]
    for gpus in sorted({point.gpus_per_node for point in points}):
        column = [point for point in points if point.gpus_per_node == gpus]
        lines.append((sorted(column, key=lambda point: point.nodes), "--"))
    return [(line, style) for line, style in lines if len(line) > 1]


def _name_shapes(axes: Axes, points: Sequence[ScalePoint]) -> None:
    """Label each scale once, below right of its lowest point (the first: left); a faster twin above left."""
    lowest: dict[Scale, ScalePoint] = {}
    for point in points:
        known = lowest.get(point.scale)
        if known is None or (point.samples_per_s or 0) < (known.samples_per_s or 0):
            lowest[point.scale] = point
    first = min(point.world_size for point in points)
    sizes = sorted({point.world_size for point in points})
    for size in (sizes[index] for index in with_room(sizes)):
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
                fontsize=9,
                color=GREY,
                bbox={"facecolor": PAPER, "alpha": 0.75, "edgecolor": "none", "pad": 0.6},
            )


def with_room(sizes: Sequence[int]) -> list[int]:
    """Return the indices of the sizes, in ascending order, whose names do not overlap on a logarithmic axis."""
    places = [math.log(size) for size in sizes]
    return spaced(places, (places[-1] - places[0]) / MOST_NAMED)


def _plain_log_ticks(axes: Axes, points: Sequence[ScalePoint]) -> None:
    """Set about five ticks with plain round numbers, for any range."""
    rates = [point.samples_per_s for point in points if point.samples_per_s is not None]
    low, high = min(rates) / 1.5, max(rates) * 1.5
    for variant in {point.variant for point in points}:
        ideal = rate_per_gpu([point for point in points if point.variant == variant])
        high = max(high, 1.1 * (ideal or 0) * max(point.world_size for point in points))
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator(round_ticks(low, high)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain_number(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(visible=True, axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)


def round_ticks(low: float, high: float) -> list[float]:
    """Return at most seven round numbers within low..high (both > 0)."""
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
    """Return the label of a tick, never as a power of ten."""
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"


def _throughput_legend(points: Sequence[ScalePoint], units: str) -> list[Line2D]:
    measured = [point for point in points if point.samples_per_s is not None]
    if not measured:
        return []
    keys, colour = variant_keys(points), legend_colour(points)
    lines = [
        style
        for name in looks(measured)
        for mode in ("weak", "strong")
        for _, style in growth([p for p in measured if (p.variant, p.mode) == (name, mode)])
    ]
    if "-" in lines:
        keys.append(legend_key(f"more {units} in one node", color=colour, linewidth=1.5))
    if "--" in lines:
        keys.append(legend_key("more nodes", color=colour, linewidth=1.5, linestyle="--"))
    keys.append(legend_key("ideal", color=GREY, **IDEAL))
    keys.append(legend_key("half the ideal", color=GREY, **HALF))
    return keys
