r"""The main plots as PGFPlots source, for LaTeX: their figures as text, which a person can edit. Pure.

They need \usepackage{pgfplots} with \pgfplotsset{compat=1.15} or newer, and are included by \input{throughput.tikz}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ddp_ladder.common.formats import stage_name
from ddp_ladder.gates.figures import EFFICIENCY, SAMPLES_PER_S, Column, columns
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.report.attribution_plot import PARTS
from ddp_ladder.report.efficiency_plot import highest
from ddp_ladder.report.escape import tex_text
from ddp_ladder.report.plots import Look, Thresholds, looks, spaced
from ddp_ladder.report.style import COLOURS, CROWD, GREY
from ddp_ladder.report.throughput_plot import growth, rate_per_gpu, with_room

HEAD = "% Needs \\usepackage{pgfplots} and \\pgfplotsset{compat=1.15}; include it with \\input.\n"
ALWAYS = (
    "width=0.8\\linewidth",
    "height=0.5\\linewidth",
    "axis lines=left",
    "ymajorgrids",
    "legend style={draw=none, font=\\footnotesize, cells={anchor=west}, at={(0.5,1.08)}, anchor=south}",
    "legend columns=3",
    "error bars/y dir=both",
    "error bars/y explicit",
)
MARKS = ("*", "square*", "triangle*", "diamond*", "pentagon*", "x", "+")
MOST_TICKS = 12
Lines = Iterator[str]


def throughput_tikz(points: Sequence[ScalePoint], units: str) -> str:
    """Return samples/s against the number of ``units``, both logarithmic; a picture for each mode."""

    def body(shown: Sequence[ScalePoint]) -> Lines:
        sizes = sorted({point.world_size for point in shown})
        ticks = ",".join(str(sizes[index]) for index in with_room(sizes))
        yield f"xmode=log, ymode=log, log ticks with fixed point, xtick={{{ticks}}},"
        yield f"xlabel={{{tex_text(units)}}}, ylabel={{{tex_text(SAMPLES_PER_S.heading)}}}]"
        yield from _series(shown, SAMPLES_PER_S, lambda point: point.world_size)
        for index, (variant, look) in _drawn(shown):
            yield from _growth([p for p in shown if p.variant == variant], _colour(index, look))
        first = [point for point in shown if point.variant == shown[0].variant]
        if rate := rate_per_gpu(first):
            for share, style, name in ((1.0, "densely dotted", "ideal"), (0.5, "dashed", "half of it")):
                ends = " ".join(f"({size},{share * rate * size:.6g})" for size in (sizes[0], sizes[-1]))
                yield from _line(f"{style}, grey", ends, name)

    return _pictures([point for point in points if SAMPLES_PER_S.estimate(point)], body)


def efficiency_tikz(points: Sequence[ScalePoint], thresholds: Thresholds) -> str:
    """Return the efficiency in percent at each scale, in climbing order, with the gates' thresholds."""

    def body(shown: Sequence[ScalePoint]) -> Lines:
        places = _places(shown)
        yield from _scales(places)
        yield f"ymin=0, ymax={105 * highest(shown):.0f}, ylabel={{{tex_text(EFFICIENCY.heading)}, \\%}}]"
        yield from _series(shown, EFFICIENCY, lambda point: places[str(point.scale)], 100)
        for stage in dict.fromkeys(point.stage for point in shown):
            at = [places[str(point.scale)] for point in shown if point.stage == stage]
            if (least := thresholds.get(stage)) is not None:
                ends = f"({min(at) - 0.5:g},{100 * least:g}) ({max(at) + 0.5:g},{100 * least:g})"
                yield from _line("solid, black", ends, f"asked by the gate of {stage_name(stage)}")

    return _pictures([point for point in points if EFFICIENCY.estimate(point)], body)


def attribution_tikz(points: Sequence[ScalePoint]) -> str:
    """Return the parts of each scale's step in milliseconds, as stacked bars. points: of one variant."""

    def body(shown: Sequence[ScalePoint]) -> Lines:
        places = _places(shown)
        yield "ybar stacked, bar width=0.6, error bars/y dir=none, reverse legend,"
        yield from _scales(places)
        yield "ymin=0, ylabel={step time, ms}]"
        headings = {column.key: column.heading for column in columns("attribution")}
        for key in PARTS:
            seconds = [getattr(point, key) or 0.0 for point in shown]
            if any(seconds):
                bars = " ".join(f"({k},{1000 * value:.6g})" for k, value in enumerate(seconds))
                yield f"\\addplot[draw=white, fill=part-{key[:-2].replace('_', '-')}] coordinates {{{bars}}};"
                yield f"\\addlegendentry{{{tex_text(headings[key])}}}"

    colours = {f"part-{key[:-2].replace('_', '-')}": colour for key, colour in PARTS.items()}
    return _pictures([point for point in points if point.rest_s is not None], body, colours)


def _pictures(
    points: Sequence[ScalePoint], body: Callable[[Sequence[ScalePoint]], Lines], colours: dict[str, str] | None = None
) -> str:
    """Return a picture for each mode. body: options that end with "]", then the plots."""
    colours = {"grey": GREY, "crowd": CROWD, **{f"c{k}": c for k, c in enumerate(COLOURS)}, **(colours or {})}
    modes = list(dict.fromkeys(point.mode for point in points))
    made = [f"\\definecolor{{{name}}}{{HTML}}{{{colour[1:].upper()}}}" for name, colour in colours.items()]
    for mode in modes:
        title = [f"title={{{mode} scaling}}"] if len(modes) > 1 else []
        lines = body([point for point in points if point.mode == mode])
        made += ["\\begin{tikzpicture}", f"\\begin{{axis}}[{', '.join((*ALWAYS, *title))},"]
        made += [*lines, "\\end{axis}", "\\end{tikzpicture}", "\\par\\medskip"]
    return HEAD + "\n".join(made if modes else ["% Nothing measured yet."]) + "\n"


def _series(
    shown: Sequence[ScalePoint], column: Column, place: Callable[[ScalePoint], float], factor: float = 1.0
) -> Lines:
    """Yield the plot of each variant, with its intervals."""
    for index, (variant, look) in _drawn(shown):
        own = [point for point in shown if point.variant == variant]
        yield f"\\addplot[{_colour(index, look)}, only marks, mark={MARKS[index % len(MARKS)]}]"
        yield "  table[row sep=\\\\, x=x, y=y, y error plus=plus, y error minus=minus] {"
        yield "  x y plus minus\\\\"
        for point in sorted(own, key=place):
            value, low, high = column.estimate(point) or (0.0, 0.0, 0.0)
            figures = (factor * value, factor * (high - value), factor * (value - low))
            yield f"  {place(point):g} {' '.join(f'{figure:.6g}' for figure in figures)}\\\\ % {point.scale}"
        yield "  };"
        if not look.in_crowd:
            yield f"\\addlegendentry{{{tex_text(variant)}}}"
        elif index == 1:
            yield f"\\addlegendentry{{{len(looks(shown)) - 1} other variants}}"


def _drawn(shown: Sequence[ScalePoint]) -> list[tuple[int, tuple[str, Look]]]:
    """Return the variants with their numbers, in the order of drawing: a crowd lies below the first."""
    return sorted(enumerate(looks(shown).items()), key=lambda each: not each[1][1].in_crowd)


def _colour(index: int, look: Look) -> str:
    """Return the colour of a variant; with ``forget plot`` if it has no entry in the legend."""
    return f"color=c{index}" if not look.in_crowd else "color=crowd" if index == 1 else "color=crowd, forget plot"


def _growth(own: Sequence[ScalePoint], colour: str) -> Lines:
    """Yield the lines of throughput: solid within one node, dashed across nodes."""
    for line, style in growth(own):
        rates = " ".join(f"({point.world_size},{point.samples_per_s:.6g})" for point in line)
        dashes = "solid" if style == "-" else "dashed"
        yield f"\\addplot[{colour}, {dashes}, no marks, forget plot] coordinates {{{rates}}};"


def _line(style: str, coordinates: str, name: str) -> Lines:
    yield f"\\addplot[{style}, no marks] coordinates {{{coordinates}}};"
    yield f"\\addlegendentry{{{name}}}"


def _places(shown: Sequence[ScalePoint]) -> dict[str, int]:
    """Return the place of each scale on the axis, in climbing order."""
    return {scale: index for index, scale in enumerate(dict.fromkeys(str(point.scale) for point in shown))}


def _scales(places: dict[str, int]) -> Lines:
    names = list(places)
    named = spaced(range(len(names)), len(names) / MOST_TICKS)
    ticks, labels = ",".join(map(str, named)), ",".join(names[index] for index in named)
    yield f"xmin=-0.6, xmax={len(names) - 0.4:g}, xtick={{{ticks}}}, xticklabels={{{labels}}},"
    yield "xlabel={scale: nodes x GPUs per node},"
