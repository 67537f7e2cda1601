"""Plots of throughput and efficiency: one panel per mode, ideal beside measured, 95 % intervals.

Scales with the same number of GPUs are different points: 1x2 and 2x1 share a place on the GPU axis, never a line.
A line connects growth of one kind: more GPUs in one node, or more nodes with the same GPUs in each.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddp_ladder.gates.figures import Column
from ddp_ladder.gates.scale_point import ScalePoint

# Okabe and Ito: distinct with any colour vision; the markers are distinct without any colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, GREY, PALE, BAND = "#1f2933", "#6b7785", "#d5dae0", "#f4f6f8"
WIDTH_IN, PANEL_IN, MARGIN_IN = 6.1, 3.35, 0.62
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
IDEAL: dict[str, Any] = {"linewidth": 0.9, "linestyle": (0, (1, 1.6))}
Format = Literal["svg", "png"]
Thresholds = Mapping[str, float | None]  # min_efficiency by stage, a fraction


@dataclass(frozen=True)
class Look:
    """Colour and marker of a variant, the same in every panel."""

    colour: str
    marker: str


def looks(points: Sequence[ScalePoint]) -> dict[str, Look]:
    """Return the look of each variant, in the order of the points; after seven, colours and markers repeat."""
    names = dict.fromkeys(point.variant for point in points)
    return {
        name: Look(COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]) for index, name in enumerate(names)
    }


def render(figure: Figure, kind: Format, *, text_as_text: bool = False) -> bytes:
    """Return a plot as the bytes of a file. text_as_text: SVG text that uses the font of the page around it."""
    buffer = io.BytesIO()
    style = {**STYLE, "svg.fonttype": "none" if text_as_text else "path"}
    with rc_context(style):
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
    return buffer.getvalue()


def inline_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """Return a plot as an element for an HTML page: own ids, no prologue, no metadata.

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
            figure.legend(handles=keys, loc="outside upper left", ncols=min(4, len(keys)), columnspacing=1.4)
    return figure


def _panels(points: Sequence[ScalePoint]) -> tuple[Figure, dict[str, Axes]]:
    """Return a figure with one panel per mode, below each other."""
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
    return [
        legend_key(_plain(name), color=look.colour, marker=look.marker, linestyle="none", markersize=6)
        for name, look in found.items()
        if len(found) > 1
    ]


def _plain(text: str) -> str:
    """Return a label with a space before an underscore: matplotlib hides labels that begin with one."""
    return f" {text}" if text.startswith("_") else text


def draw_marker(axes: Axes, place: float, column: Column, point: ScalePoint, look: Look) -> None:
    """Draw a figure of a point with its interval: full within one node, hollow across nodes."""
    value, low, high = column.estimate(point) or (math.nan, math.nan, math.nan)
    axes.errorbar(
        place,
        value,
        yerr=[[value - low], [high - value]],
        color=look.colour,
        marker=look.marker,
        markersize=6.5,
        markerfacecolor=look.colour if point.nodes == 1 else "white",
        markeredgewidth=1.4,
        elinewidth=1.3,
        capsize=3,
        linestyle="none",
        zorder=3,
    )
