"""The layout of the pictures of usage: narrow, with panels below each other, so that scales fit side by side.

Everything has a fixed place in inches, which is much faster than matplotlib's layout of many axes.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator

from ddp_ladder.report.style import PALE

WIDTH_IN = 4.4  # three beside each other on a screen, one on a phone
LEFT_IN, RIGHT_IN, BOTTOM_IN, TITLE_IN, PANEL_IN, LEGEND_ROW_IN = 0.52, 0.1, 0.42, 0.25, 0.72, 0.19
SMALL = 8.5  # points: still readable on a phone
ROOM = 1.05  # so that a line at 100 % is not on the edge
ROUND = (1, 2, 2.5, 5, 10)  # steps of ticks


def layout(panels: int, legend_rows: int) -> tuple[Figure, list[Axes]]:
    """Return a figure whose panels have fixed places: much faster than matplotlib's layout of many axes."""
    legend_in = LEGEND_ROW_IN * legend_rows
    height = legend_in + panels * (TITLE_IN + PANEL_IN) + BOTTOM_IN
    figure = Figure(figsize=(WIDTH_IN, height), facecolor="white")
    made = []
    for index in range(panels):
        bottom = height - legend_in - (index + 1) * (TITLE_IN + PANEL_IN)
        width = (WIDTH_IN - LEFT_IN - RIGHT_IN) / WIDTH_IN
        made.append(figure.add_axes((LEFT_IN / WIDTH_IN, bottom / height, width, PANEL_IN / height)))
    return figure, made


def style(axes: Axes, heading: str, top: float) -> None:
    """Set title and axis of a panel; the axis begins at 0. top: 100 for a share in percent."""
    axes.set_ylim(0, ROOM * top)
    axes.set_title(heading, fontsize=SMALL, pad=4)
    axes.yaxis.set_major_locator(FixedLocator((0, 50, 100)) if top == 100 else MaxNLocator(3, steps=ROUND))
    axes.tick_params(labelsize=SMALL, length=2)
    axes.grid(visible=True, axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)


def key_beside_title(axes: Axes, keys: Sequence[Artist]) -> None:
    """Draw a legend at the right of a panel's title."""
    axes.legend(
        handles=keys,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.03),
        ncols=len(keys),
        fontsize=SMALL,
        handlelength=1.1,
        handletextpad=0.4,
        columnspacing=0.8,
        borderaxespad=0,
        borderpad=0.1,
    )


def legends(figure: Figure, rows: Sequence[tuple[Sequence[Artist], int]]) -> None:
    """Draw one legend below the other at the top. rows: the entries of each, and how many go beside each other."""
    height = figure.get_size_inches()[1]
    top_in = 0.02
    for keys, columns in rows:
        figure.legend(
            handles=keys,
            loc="upper left",
            bbox_to_anchor=(0.01, 1 - top_in / height),
            ncols=columns,
            fontsize=SMALL,
            handlelength=1.1,
            handletextpad=0.4,
            columnspacing=0.9,
            borderaxespad=0,
            borderpad=0,
            labelspacing=0.25,
        )
        top_in += LEGEND_ROW_IN * -(-len(keys) // columns)
