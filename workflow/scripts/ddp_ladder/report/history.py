"""The history of a workload: a page in the look of the report, Markdown, CSV and a plot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from ddp_ladder import __version__
from ddp_ladder.analysis.comparison import FASTER, SLOWER, interval_text, number
from ddp_ladder.analysis.history import ALIKE, FIRST, NO_CHANGE, OTHER_PLATFORM, UNLIKE, Entry, History, Ladder
from ddp_ladder.common.formats import UNKNOWN, count, shortened, significant
from ddp_ladder.common.grouping import grouped
from ddp_ladder.gates.figures import EFFICIENCY, SAMPLES_PER_S
from ddp_ladder.report.document import Block, Cell, Document, Section, csv_text, table_block
from ddp_ladder.report.plots import COLOURS, LONGEST_NAME, MARKERS, PAPER, STYLE, drawn, legend_key
from ddp_ladder.report.rendering import as_html, as_markdown

HEADINGS = (
    "scale", Cell("measured", style="n"), "site", Cell("samples/s", style="n"), Cell("per GPU", style="n"),
    Cell("efficiency", style="n"), Cell("ratio", style="n"), "verdict", "found", "changed",
)  # fmt: skip
HOW_TO_READ = (
    "Each ladder is compared with the one before it that measured the scale. The ratio is that of the samples/s; its "
    "95 % interval holds what separate jobs usually differ by; if it holds 1, there is no change beyond chance.",
    f"{ALIKE.capitalize()}: no field of the fingerprint differs. {OTHER_PLATFORM.capitalize()}: the same training, and "
    "the ratio is the effect of all that changed together, nodes and day included.",
    f"{UNLIKE.capitalize()}: the training itself differs, or a field could not be read; no comparison is possible.",
)
STYLES = {ALIKE: "ok", UNLIKE: "failed"}
VERDICTS = (FASTER, SLOWER, NO_CHANGE)
SIZE_IN = (5.0, 3.3)
Value = Callable[[Entry], float | None]
PLOTS: Mapping[str, Value] = {
    "throughput": lambda entry: entry.per_gpu,
    "efficiency": lambda entry: None if entry.point.efficiency is None else 100 * entry.point.efficiency,
}


def history_files(ladders: Sequence[Ladder], histories: Sequence[History], written_on: date) -> dict[str, str | bytes]:
    """Return the files by name, the page first. ladders: in the order of their dates."""
    plots = {name: drawn(history_figure(ladders, histories, column)) for name, column in PLOTS.items()}
    document = _document(ladders, histories, written_on)
    files = {f"{name}.{kind}": content for name, images in plots.items() for kind, content in images.items()}
    return {
        "index.html": as_html("history.html.j2", files, document=document),
        "history.md": as_markdown(document),
        "history.csv": csv_text(_csv_rows(histories)),
        **files,
    }


def _document(ladders: Sequence[Ladder], histories: Sequence[History], written_on: date) -> Document:
    plots = (
        Block(
            "Samples/s per GPU of each scale. A line joins points of the same training; where it is broken, they are "
            f"{UNLIKE}.",
            picture="throughput",
        ),
        Block(
            "Efficiency of each scale in per cent, against the first scale of the same ladder.", picture="efficiency"
        ),
    )
    of_ladders = Block(
        name="Ladders",
        headings=("file", "measured", "site", "scales", "runs"),
        rows=tuple(
            (ladder.name, ladder.on or "not known", ladder.site, str(len([*ladder.measured])), str(len(ladder.records)))
            for ladder in ladders
        ),
    )
    parts = [
        Section("", (Block(summary_text(histories)),), style=f"headline {_kind(histories)}".strip()),
        Section("", plots, style="plots"),
        *(Section(f"{mode.capitalize()} scaling", (_table(own),)) for mode, own in _by_mode(histories).items()),
        Section("How to read it", (Block(items=HOW_TO_READ, style="notes"),)),
        Section("Ladders", (of_ladders,)),
    ]
    title = f"History of {ladders[0].script}"
    return Document(title, tuple(parts), f"Written by ddp-ladder {__version__} on {written_on.isoformat()}.")


def _by_mode(histories: Sequence[History]) -> Mapping[str, Sequence[History]]:
    return grouped((history.mode, history) for history in histories)


def _table(histories: Sequence[History]) -> Block:
    rows = [_cells(history, entry) for history in histories for entry in history.entries]
    return table_block(f"Scales of {histories[0].mode} scaling", HEADINGS, rows, "figures", "comparison")


def _cells(history: History, entry: Entry) -> tuple[str | Cell, ...]:
    point, ratio = entry.point, entry.ratio
    return (
        history.scale,
        Cell(entry.ladder.on or "not known", style="n"),
        entry.ladder.site,
        Cell(SAMPLES_PER_S.shown(point), small=(SAMPLES_PER_S.interval(point),), style="n"),
        Cell(significant(entry.per_gpu), style="n"),
        Cell(EFFICIENCY.shown(point), style="n"),
        Cell(number(ratio.value) if ratio else UNKNOWN, small=(interval_text(ratio) if ratio else "",), style="n"),
        entry.verdict,
        Cell(entry.found, style=STYLES.get(entry.found, "")),
        "; ".join(f"{name}: {then} → {now}" for name, then, now in entry.changed),
    )


def _compared(histories: Sequence[History]) -> History | None:
    """Return the largest scale that was measured more than once."""
    return next((history for history in reversed(histories) if len(history.entries) > 1), None)


def _kind(histories: Sequence[History]) -> str:
    """Return how the summary is shown: as a good result only if all that it tells of could be compared."""
    largest = [history for own in _by_mode(histories).values() if (history := _compared(own))]
    known = [entry.verdict in VERDICTS for history in largest for entry in history.entries[1:]]
    return "" if known and all(known) else "doubtful" if any(known) else "empty"


def summary_text(histories: Sequence[History]) -> str:
    """Return what changed, or could not be compared, at the largest scale of each mode; and how many are not alike."""
    sentences = []
    for mode, own in _by_mode(histories).items():
        largest = _compared(own)
        if largest is None:
            sentences.append(f"No scale of {mode} scaling was measured twice.")
            continue
        steps = [_step(entry) for entry in largest.entries[1:] if entry.verdict != NO_CHANGE]
        if len(steps) < len(largest.entries) - 1:
            steps.append(f"otherwise {NO_CHANGE}" if steps else NO_CHANGE)
        sentences.append(f"{largest.scale} ({mode} scaling): {'; '.join(steps)}.")
    unlike = sum(entry.found == UNLIKE for history in histories for entry in history.entries)
    are = "is" if unlike == 1 else "are"
    return " ".join((*sentences, f"{count(unlike, 'point')} {are} not like for like with the one before."))


def _step(entry: Entry) -> str:
    ratio, words = entry.ratio, entry.verdict
    if ratio is not None:
        changed = ", ".join(f"{name} {then} → {now}" for name, then, now in entry.changed) or "no field changed"
        words = f"{words}, {number(ratio.value)} times {interval_text(ratio)} ({changed})"
    return f"on {entry.ladder.on or 'a day that is not known'}, {entry.ladder.site}: {words}"


def _csv_rows(histories: Sequence[History]) -> Iterator[dict[str, object]]:
    for history in histories:
        for entry in history.entries:
            point, ratio = entry.point, entry.ratio
            yield {
                "mode": history.mode,
                "scale": history.scale,
                "ladder": entry.ladder.name,
                "measured": entry.ladder.on,
                "site": entry.ladder.site,
                "repeats": point.repeats,
                "samples_per_s": point.samples_per_s,
                "samples_per_s_low": point.samples_per_s_low,
                "samples_per_s_high": point.samples_per_s_high,
                "samples_per_s_per_gpu": entry.per_gpu,
                "efficiency": point.efficiency,
                "ratio": ratio and ratio.value,
                "ratio_low": ratio and ratio.low,
                "ratio_high": ratio and ratio.high,
                "verdict": entry.verdict,
                "found": entry.found,
                "changed": "; ".join(f"{name}: {then} -> {now}" for name, then, now in entry.changed),
            }


# --- The plot.


def history_figure(ladders: Sequence[Ladder], histories: Sequence[History], value: Value) -> Figure:
    """Return a figure over the ladders, a line for each scale."""
    places = {id(ladder): k for k, ladder in enumerate(ladders)}
    with rc_context(STYLE):
        figure = Figure(figsize=SIZE_IN, layout="constrained", facecolor=PAPER)
        axes, keys, highest = figure.subplots(), [], 0.0
        for k, history in enumerate(histories):
            look: dict[str, Any] = {"color": COLOURS[k % len(COLOURS)], "marker": MARKERS[k % len(MARKERS)]}
            keys.append(legend_key(f"{history.scale} {history.mode}", linestyle="none", **look))
            for part in _unbroken(history.entries):
                shown = [(places[id(entry.ladder)], y) for entry in part if (y := value(entry)) is not None]
                axes.plot([x for x, _ in shown], [y for _, y in shown], linewidth=1.5, **look)
                highest = max([highest, *(y for _, y in shown)])
        sites = [shortened(ladder.site, LONGEST_NAME, "…") for ladder in ladders]
        days = [ladder.on or "no date" for ladder in ladders]
        axes.set_xticks(range(len(ladders)), [f"{day}\n{site}" for day, site in zip(days, sites, strict=True)])
        axes.set(xlim=(-0.4, len(ladders) - 0.6), ylim=(0, 1.08 * highest or 1))
        axes.grid(visible=True, axis="y")
        figure.legend(handles=keys, loc="outside upper left", ncols=4)
    return figure


def _unbroken(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Yield the entries in parts; each begins with one that is not like for like, or the first."""
    part: list[Entry] = []
    for entry in entries:
        if part and entry.found in (FIRST, UNLIKE):
            yield part
            part = []
        part.append(entry)
    yield part
