"""The forest plot of a comparison: each ratio with its interval, one panel per mode and scale, the fastest on top."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ddp_ladder.analysis.comparison import FASTER, SLOWER, Compared, Comparison, Panel, decisive, ratio_text
from ddp_ladder.report.plots import WIDTH_IN, legend_key, show_message
from ddp_ladder.report.style import COLOURS, GREY, INK, PALE, PAPER, STYLE
from ddp_ladder.report.svg import value_id

MOST_PANELS, MOST_COLUMNS = 12, 2
MOST_ROWS = 80  # of all panels: a longer picture is as long as a table; with many variants, four panels at least
ROW_IN, HEAD_IN = 0.23, 0.85
LONGEST_LABEL = 24
BLUE, RED = COLOURS[0], COLOURS[1]
MOST_ASIDE = 1.6  # an interval that reaches further from 1 than this times the furthest ratio is cut, with an arrow
LEAST_ASIDE = 0.05  # of 1: a panel shows at least this much on each side


def comparison_figure(comparison: Comparison) -> Figure:
    """Return the forest plot; of many panels those of the largest scales."""
    panels = shown_panels(comparison)
    labels = _labels(comparison, panels)
    against = f"throughput / {comparison.reference}" if comparison.is_paired else "ratio to the first folder"
    columns = min(MOST_COLUMNS, len(panels)) or 1
    lines = math.ceil(len(panels) / columns) or 1
    height_in = 0.4 + lines * (HEAD_IN + ROW_IN * max(2, len(labels)))
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained", facecolor=PAPER)
        grid = figure.subplots(lines, columns, squeeze=False)
        places = [axes for line in grid for axes in line]
        for place, axes in enumerate(places):
            if place >= len(panels):
                axes.set_axis_off()
            else:
                _panel(axes, panels[place], labels, is_first=place % columns == 0, against=against)
        if not panels:
            show_message(places[0], "nothing can be compared yet")
        else:
            figure.legend(handles=_legend(), loc="outside upper left", ncols=3, columnspacing=1.4)
    return figure


def shown_panels(comparison: Comparison) -> list[Panel]:
    """Return the panels of the plot: those with ratios, in the order of the plan; of many the largest scales."""
    panels = [each for each in comparison.panels if each.compared]
    by_size = sorted(panels, key=lambda each: each.scale.world_size, reverse=True)
    most = min(MOST_PANELS, max(4, MOST_ROWS // max((len(each.rows) for each in panels), default=1)))
    return [each for each in panels if each in by_size[:most]]


def _labels(comparison: Comparison, panels: Sequence[Panel]) -> list[str]:
    """Return the rows of every panel from the top, sorted as in the largest one, the failed ones at the end."""
    ordered = [*decisive(comparison), *panels]
    return list(dict.fromkeys(row.name for each in ordered for row in each.rows))


def _panel(axes: Axes, panel: Panel, labels: Sequence[str], is_first: bool, against: str) -> None:
    low, high = _limits(panel)
    axes.set(xlim=(low, high), ylim=(len(labels) - 0.5, -0.5))
    axes.set_title(panel.place)
    axes.axvline(1, color=INK, linewidth=0.9, zorder=1)
    for row in panel.rows:
        _row(axes, row, labels.index(row.name), low, high)
    names = [label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 1]}…" for label in labels]
    axes.set_yticks(range(len(labels)), names if is_first else [""] * len(labels))
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(against)


def _limits(panel: Panel) -> tuple[float, float]:
    values = [row.ratio.value for row in panel.rows if row.ratio] or [1.0]
    ends = [end for row in panel.rows if row.ratio for end in (row.ratio.low, row.ratio.high) if end is not None]
    aside = max(LEAST_ASIDE, *(abs(value - 1) for value in values))
    least, most = 1 - MOST_ASIDE * aside - LEAST_ASIDE, 1 + MOST_ASIDE * aside + LEAST_ASIDE
    low = max(0.0, least, min(1 - LEAST_ASIDE, *values, *ends) - 0.1 * aside)
    high = min(most, max(1 + LEAST_ASIDE, *values, *ends) + 0.1 * aside)
    return low, high


def _row(axes: Axes, row: Compared, place: int, low: float, high: float) -> None:
    if row.ratio is None:
        text = "reference" if row.is_reference else row.found.partition(":")[0]
        x = 1.0 if row.is_reference else (low + high) / 2
        back = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.0}
        axes.text(x, place, text, ha="center", va="center", fontsize=8, color=GREY, bbox=back, zorder=4)
        return
    colour = BLUE if row.found == FASTER else RED if row.found == SLOWER else GREY
    if row.ratio.low is not None and row.ratio.high is not None:
        ends = max(low, row.ratio.low), min(high, row.ratio.high)
        axes.plot(ends, (place, place), color=colour, linewidth=1.5, solid_capstyle="butt", zorder=2)
        for end, limit, marker in ((row.ratio.low, low, "<"), (row.ratio.high, high, ">")):
            if not low <= end <= high:
                axes.plot(limit, place, marker=marker, color=colour, markersize=5, clip_on=False, zorder=3)
    words = f"{row.scale} {row.mode} {row.name}: {ratio_text(row.ratio)}, {row.found}"
    is_shown = row.found in (FASTER, SLOWER)
    axes.plot(
        row.ratio.value,
        place,
        marker="s",
        markersize=5.5,
        color=colour,
        markerfacecolor=colour if is_shown else PAPER,
        markeredgewidth=1.3,
        linestyle="none",
        zorder=3,
        gid=value_id(words),
    )


def _legend() -> list[object]:
    style = {"marker": "s", "markersize": 5.5, "markeredgewidth": 1.3, "linestyle": "-", "linewidth": 1.5}
    return [
        legend_key("faster", color=BLUE, **style),
        legend_key("slower", color=RED, **style),
        legend_key("not shown to differ", color=GREY, markerfacecolor=PAPER, **style),
    ]


def forest_in_words(comparison: Comparison) -> str:
    """Return the picture in words, for screen readers."""
    lines = [
        f"{each.place}: " + ", ".join(f"{row.name} {ratio_text(row.ratio)}" for row in each.compared if row.ratio)
        for each in shown_panels(comparison)
    ]
    return f"Ratios of throughput against {comparison.reference}. {'; '.join(lines) or 'nothing can be compared yet'}."
