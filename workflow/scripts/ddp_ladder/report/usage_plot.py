"""The picture of what one run used over time: GPU busy, memory bandwidth, power, temperature, CPU, network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from ddp_ladder.nodes.read import Phase, Span
from ddp_ladder.report.plots import legend_key, show_message
from ddp_ladder.report.stacked import PANEL_IN, ROUND, SMALL, WIDTH_IN, key_beside_title, layout, legends, style
from ddp_ladder.report.style import COLOURS, GREY, INK, STYLE
from ddp_ladder.report.style import SHADES as SHADE_COLOURS
from ddp_ladder.report.traces import Band, Dip, Trace, labelled, merged
from ddp_ladder.report.usage_panels import BINS, Panel

LETTER_SHARE = 0.019  # of the width of a panel: what a letter of a label takes
MOST_LABELS = 4
MOST_EPOCHS = 40  # more would be stripes, not epochs
LINE_COLOURS = (*COLOURS, GREY)
SHADES: Mapping[str, tuple[str, tuple[Phase, ...]]] = {  # label: (colour, phases)
    "start-up, end": (SHADE_COLOURS["start-up"], ("start-up", "end")),
    "warm-up": (SHADE_COLOURS["warm-up"], ("warm-up",)),
    "validation": (SHADE_COLOURS["validation"], ("validation",)),
    "between epochs": (SHADE_COLOURS["between"], ("between epochs",)),
}
EPOCHS, EPOCH_COLOUR = "every second epoch", SHADE_COLOURS["epoch"]
TIME_UNITS = ((180.0, 1.0, "s"), (10_800.0, 60.0, "min"), (float("inf"), 3600.0, "h"))  # up to (s), size (s), name


def run_figure(
    shown: Sequence[Panel], spans: Sequence[Span], epoch_starts_s: Sequence[float] = (), dips: Sequence[Dip] = ()
) -> Figure:
    """Return the picture of one run: its panels below each other on one axis of time, with the phases shaded.

    dips: of the GPUs' busy fraction; some get a label in the first panel. All times are on one clock.
    """
    with rc_context(STYLE):
        if not shown:
            return _nothing()
        begin_s, end_s = _time_range(shown, spans)
        shades = _shades(spans, epoch_starts_s, begin_s, end_s)
        devices = [trace.label for panel in shown if panel.by_device for trace in panel.lines]
        colours = {label: LINE_COLOURS[k % len(LINE_COLOURS)] for k, label in enumerate(dict.fromkeys(devices))}
        keys = [_band_keys(shown), _device_keys(colours), _shade_keys(shades)]
        rows = [(each, columns) for each, columns in zip(keys, (1, 4, 3), strict=True) if each]
        figure, panels = layout(len(shown), sum(-(-len(each) // columns) for each, columns in rows))
        for axes, panel in zip(panels, shown, strict=True):
            _draw(axes, panel, colours)
            for colour, bars in shades.values():
                axes.add_patch(_bars(axes, bars, colour))
            axes.set_xlim(begin_s, end_s)
            _time_axis(axes, begin_s, end_s, axes is panels[-1])
        if shown[0].key == "busy":
            _label_dips(panels[0], dips, begin_s, end_s)
        legends(figure, rows)
    return figure


def _nothing() -> Figure:
    figure = Figure(figsize=(WIDTH_IN, PANEL_IN), facecolor="white")
    show_message(figure.add_axes((0, 0, 1, 1)), "nothing sampled")
    return figure


def _time_range(shown: Sequence[Panel], spans: Sequence[Span]) -> tuple[float, float]:
    times = [line.times_s for panel in shown for line in panel.lines]
    times += [each.times_s for panel in shown for each in panel.bands]
    times = [each for each in times if len(each)]
    begin_s = min([float(each[0]) for each in times] + [span.begin_s for span in spans])
    end_s = max([float(each[-1]) for each in times] + [span.end_s for span in spans])
    return begin_s, max(end_s, begin_s + 1)


def _bars(axes: Axes, bars: Sequence[tuple[float, float]], colour: str) -> PathPatch:
    """Return bars over the whole height as one path: hundreds of epochs are then still a small file."""
    corners = [[(left, 0), (left, 1), (left + length, 1), (left + length, 0), (left, 0)] for left, length in bars]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(bars)
    path = Path([corner for bar in corners for corner in bar], codes)
    return PathPatch(path, transform=axes.get_xaxis_transform(), facecolor=colour, linewidth=0, zorder=0)


def _draw(axes: Axes, panel: Panel, colours: Mapping[str, str]) -> None:
    style(axes, panel.heading, panel.top)
    kinds = list(dict.fromkeys([*(line.label for line in panel.lines), *(each.label for each in panel.bands)]))
    own = colours if panel.by_device and panel.lines else dict(zip(kinds, LINE_COLOURS, strict=False))
    for trace in panel.lines:
        _line(axes, trace, own[trace.label])
    for each in panel.bands:
        _band(axes, each, own[each.label])
    if panel.limit:
        axes.axhline(panel.limit.value, color=INK, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1.5)
    keys = [] if panel.by_device else [legend_key(kind, color=own[kind], linewidth=1.5) for kind in kinds]
    if panel.limit:
        keys.append(legend_key(panel.limit.name, color=INK, linewidth=0.8, linestyle=(0, (4, 2))))
    if keys:
        key_beside_title(axes, keys)


def _line(axes: Axes, trace: Trace, colour: str) -> None:
    axes.plot(trace.times_s, trace.values, color=colour, linewidth=1.0, zorder=3, solid_joinstyle="round")


def _band(axes: Axes, each: Band, colour: str) -> None:
    axes.fill_between(each.times_s, each.low, each.high, color=colour, alpha=0.28, linewidth=0, zorder=2)
    axes.plot(each.times_s, each.middle, color=colour, linewidth=1.1, zorder=3)


def _time_axis(axes: Axes, begin_s: float, end_s: float, is_last: bool) -> None:
    """Set round ticks of the time since the begin; only the last panel has their labels."""
    duration = end_s - begin_s
    size, name = next((size, name) for most, size, name in TIME_UNITS if duration <= most)
    ticks = [
        tick for tick in MaxNLocator(6, steps=ROUND).tick_values(0, duration / size) if 0 <= tick * size <= duration
    ]
    axes.set_xticks([begin_s + tick * size for tick in ticks], [f"{tick:g}" for tick in ticks] if is_last else [])
    if is_last:
        axes.set_xlabel(f"time since the start of the run, {name}", fontsize=SMALL, labelpad=3)


def _shades(
    spans: Sequence[Span], epoch_starts_s: Sequence[float], begin_s: float, end_s: float
) -> dict[str, tuple[str, list[tuple[float, float]]]]:
    """Return the colour and the bars (begin, length) of each entry of the legend, in the order of drawing."""
    shades = {}
    narrowest = (end_s - begin_s) / (2 * BINS)

    def bars(shaded: Sequence[Span]) -> list[tuple[float, float]]:
        return [(span.begin_s, max(narrowest / 2, span.end_s - span.begin_s)) for span in shaded]

    epochs = list(_every_other(epoch_starts_s, spans))
    if epochs and len(epoch_starts_s) <= MOST_EPOCHS:
        shades[EPOCHS] = (EPOCH_COLOUR, bars(epochs))
    for label, (colour, phases) in SHADES.items():
        if found := merged(spans, phases, narrowest):
            shades[label] = (colour, bars(found))
    return shades


def _every_other(epoch_starts_s: Sequence[float], spans: Sequence[Span]) -> Iterator[Span]:
    """Return the second, the fourth, ... epoch; the last one ends with the training."""
    ends = [*epoch_starts_s[1:], max((span.end_s for span in spans if span.phase != "end"), default=0.0)]
    for index, (start_s, end_s) in enumerate(zip(epoch_starts_s, ends, strict=False)):
        if index % 2 and end_s > start_s:
            yield Span("training", start_s, end_s)


def _label_dips(axes: Axes, dips: Sequence[Dip], begin_s: float, end_s: float) -> None:
    for place, dip in labelled(dips, begin_s, end_s, LETTER_SHARE * (end_s - begin_s), MOST_LABELS):
        axes.annotate(
            dip.phase,
            (dip.middle_s, 100 * dip.lowest),
            xytext=(place, 14),
            textcoords="data",
            ha="center",
            va="center",
            fontsize=SMALL,
            arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0},
            bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 0.8},
            zorder=5,
        )


def _device_keys(colours: Mapping[str, str]) -> list[Artist]:
    if len(colours) < 2:
        return []
    return [legend_key(label, color=colour, linewidth=1.5) for label, colour in colours.items()]


def _band_keys(shown: Sequence[Panel]) -> list[Artist]:
    counts = dict.fromkeys(f"{each.traces} {_noun(panel)}" for panel in shown for each in panel.bands)
    if not counts:
        return []
    words = f"bands: lowest to highest of {' or '.join(counts)}; line: their median"
    return [Patch(facecolor=GREY, alpha=0.4, linewidth=0, label=words)]


def _noun(panel: Panel) -> str:
    return "GPUs" if panel.by_device or panel.key == "active" else "nodes"


def _shade_keys(shades: Mapping[str, tuple[str, Any]]) -> list[Artist]:
    labels = sorted(shades, key=lambda label: label == EPOCHS)  # drawn first, named last
    return [Patch(facecolor=shades[each][0], edgecolor=GREY, linewidth=0.4, label=each) for each in labels]
