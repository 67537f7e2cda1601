"""The plot of throughput against GPUs, on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ddp_ladder.gates.figures import SAMPLES_PER_S
from ddp_ladder.gates.groups import BASELINE
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.report.plots import (
    GREY,
    IDEAL,
    PALE,
    Look,
    draw_marker,
    legend_colour,
    legend_key,
    looks,
    panel_figure,
    show_message,
    variant_keys,
)
from ddp_ladder.settings.terms import Scale

ROOM = 1.35  # factor of empty space beyond the outermost points of a logarithmic axis


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
    low_x, high_x = sizes[0] / ROOM, sizes[-1] * ROOM
    for variant, look in styles.items():
        own = [point for point in measured if point.variant == variant]
        _ideal_line(axes, own, look if len(styles) > 1 else Look(GREY, ""), sizes[-1] * ROOM)
        _growth_lines(axes, own, look)
        for point in own:
            draw_marker(axes, point.world_size, SAMPLES_PER_S, point, look)
    _name_shapes(axes, measured)
    axes.set(xscale="log", yscale="log", xlim=(low_x, high_x), xlabel=units)
    axes.set_ylabel(SAMPLES_PER_S.heading)
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
    axes.plot(ends, ideal, color=look.colour, zorder=1, **IDEAL)


def _growth_lines(axes: Axes, own: Sequence[ScalePoint], look: Look) -> None:
    for line, dashes in growth(own):
        rates = [point.samples_per_s or math.nan for point in line]
        sizes = [point.world_size for point in line]
        axes.plot(sizes, rates, color=look.colour, linewidth=1.5, linestyle=dashes, zorder=2)


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
    """Set about five ticks with plain round numbers, for any range."""
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
    return keys
