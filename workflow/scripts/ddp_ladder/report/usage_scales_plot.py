"""The picture of what each GPU and node did at each scale: at which one do they begin to wait?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddp_ladder.report.plots import legend_key
from ddp_ladder.report.stacked import SMALL, layout, legends, style
from ddp_ladder.report.style import COLOURS, GREY, INK, STYLE
from ddp_ladder.report.usage_panels import Unit

MOST_POINTS = 16  # at one scale; more become a box


@dataclass(frozen=True)
class Spread:
    """One panel: a figure of each device at each scale, in ``unit``, by mode and scale; all repeats together."""

    key: str
    title: str
    unit: Unit
    values: Mapping[tuple[str, str], tuple[float, ...]]


def scales_figure(spreads: Sequence[Spread], scales: Sequence[str], modes: Sequence[str]) -> Figure:
    """Return a panel for each spread, with the scales in climbing order beside each other, and the modes in each."""
    with rc_context(STYLE):
        boxes = any(len(values) > MOST_POINTS for spread in spreads for values in spread.values.values())
        keys = [legend_key("median", color=INK, linewidth=1.2)]
        keys.append(legend_key("one GPU or node, one run", color=GREY, marker="o", markersize=4, linestyle="none"))
        if boxes:
            keys.append(legend_key("middle half and range", color=GREY, marker="s", markersize=6, linestyle="none"))
        rows = [(keys, 3)]
        if len(modes) > 1:
            rows.append(
                (
                    [
                        legend_key(m, color=c, marker="s", linestyle="none")
                        for m, c in zip(modes, COLOURS, strict=False)
                    ],
                    4,
                )
            )
        figure, panels = layout(len(spreads), len(rows))
        for axes, spread in zip(panels, spreads, strict=True):
            _draw(axes, spread, scales, modes)
        if panels:
            panels[-1].set_xticks(range(len(scales)), scales, fontsize=SMALL, rotation=0 if len(scales) < 8 else 30)
            panels[-1].set_xlabel("scale: nodes x GPUs per node", fontsize=SMALL, labelpad=3)
        legends(figure, rows)
    return figure


def _draw(axes: Axes, spread: Spread, scales: Sequence[str], modes: Sequence[str]) -> None:
    known = [value for values in spread.values.values() for value in values]
    top = spread.unit.top or 1.03 * max(known, default=0.0) or 1.0
    style(axes, f"{spread.title}, {spread.unit.name}", top)
    axes.set_xlim(-0.6, len(scales) - 0.4)
    axes.set_xticks(range(len(scales)), [])
    room = 0.7 / len(modes)
    for (mode, scale), values in spread.values.items():
        index = modes.index(mode)
        place = scales.index(scale) + room * (index - (len(modes) - 1) / 2)
        _values(axes, place, values, COLOURS[index % len(COLOURS)], 0.8 * room)


def _values(axes: Axes, place: float, values: Sequence[float], colour: str, width: float) -> None:
    """Draw the values at one scale: each one, or beyond MOST_POINTS a box from quartile to quartile and the range."""
    if not values:
        return
    low, first, middle, third, high = (float(each) for each in np.percentile(values, (0, 25, 50, 75, 100)))
    if len(values) > MOST_POINTS:
        axes.plot([place, place], [low, high], color=colour, linewidth=1.0, zorder=2)
        axes.bar(place, third - first, width, first, color=colour, alpha=0.4, linewidth=0, zorder=2)
    else:
        shifts = width * spread_evenly(len(values))
        axes.plot(place + shifts, values, "o", color=colour, markersize=3.4, markeredgewidth=0, alpha=0.9, zorder=3)
    axes.plot([place - width / 2, place + width / 2], [middle, middle], color=INK, linewidth=1.2, zorder=2.5)


def spread_evenly(count: int) -> np.typing.NDArray[np.float64]:
    """Return the places of points beside each other, from -0.4 to 0.4; one alone is in the middle."""
    return np.linspace(-0.4, 0.4, count) if count > 1 else np.zeros(1)
