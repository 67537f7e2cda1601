"""The history of a workload: a page in the look of the report, Markdown, CSV and a plot."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import date
from hashlib import sha256
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddp_ladder import __version__
from ddp_ladder.analysis.comparison import interval_text, number
from ddp_ladder.analysis.history import ALIKE, FIRST, UNLIKE, Entry, History, Ladder
from ddp_ladder.common.files import REPORT
from ddp_ladder.common.formats import UNKNOWN, count, significant
from ddp_ladder.gates.figures import EFFICIENCY, SAMPLES_PER_S
from ddp_ladder.report.document import Block, Cell, Document, Section, csv_text, table_block
from ddp_ladder.report.plots import COLOURS, MARKERS, PAPER, STYLE, drawn, legend_key, show_message
from ddp_ladder.report.rendering import as_html, as_markdown

HEADINGS = (
    "scale", "measured", "site", "samples/s", "95 % interval", "per GPU", "efficiency", "ratio", "its interval",
    "found", "changed",
)  # fmt: skip
HOW_TO_READ = (
    "Each ladder is compared with the one before it that measured the scale. The ratio is that of the samples/s; its "
    "95 % interval holds what separate jobs usually differ by, and without it, or if it holds 1, no change is shown.",
    f"{ALIKE}: no field of the fingerprint differs. Other software or hardware: the same training, and the ratio holds "
    f"what changed. {UNLIKE.capitalize()}: the training itself differs, or a field could not be read; no ratio.",
)
STYLES = {ALIKE: "ok", UNLIKE: "failed"}
PANEL_IN = (5.0, 3.2)


def history_files(ladders: Sequence[Ladder], histories: Sequence[History], written_on: date) -> dict[str, str | bytes]:
    """Return the files by name, the page first. ladders: in the order of their dates."""
    plots = drawn(history_figure(ladders, histories))
    document = _document(ladders, histories, written_on)
    return {
        "index.html": _html(document, plots["svg"]),
        "history.md": as_markdown(document),
        "history.csv": csv_text(_csv_rows(histories)),
        **{f"history.{kind}": content for kind, content in plots.items()},
    }


def _document(ladders: Sequence[Ladder], histories: Sequence[History], written_on: date) -> Document:
    plot = Block(
        "Samples/s per GPU, and efficiency, of each scale over the ladders. A line joins two points of the same "
        "training; where it is broken they are not like for like.",
        picture="history",
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
        Section("", (Block(summary_text(histories)),)),
        Section("Plot", (plot,)),
        *(Section(f"{mode.capitalize()} scaling", (_table(own),)) for mode, own in _by_mode(histories)),
        Section("How to read it", (Block(items=HOW_TO_READ, style="notes"),)),
        Section("Ladders", (of_ladders,)),
    ]
    title = f"History of {ladders[0].script}"
    return Document(title, tuple(parts), f"Written by ddp-ladder {__version__} on {written_on.isoformat()}.")


def _by_mode(histories: Sequence[History]) -> Iterator[tuple[str, list[History]]]:
    for mode in dict.fromkeys(history.mode for history in histories):
        yield mode, [history for history in histories if history.mode == mode]


def _table(histories: Sequence[History]) -> Block:
    rows = [_cells(history, entry) for history in histories for entry in history.entries]
    return table_block(f"Scales of {histories[0].mode} scaling", HEADINGS, rows, "figures", "comparison")


def _cells(history: History, entry: Entry) -> tuple[str | Cell, ...]:
    point, ratio = entry.point, entry.ratio
    return (
        history.scale,
        entry.ladder.on or "not known",
        entry.ladder.site,
        SAMPLES_PER_S.shown(point),
        SAMPLES_PER_S.interval(point),
        significant(entry.per_gpu),
        EFFICIENCY.shown(point),
        number(ratio.value) if ratio else UNKNOWN,
        interval_text(ratio) if ratio else "",
        Cell(entry.found, style=STYLES.get(entry.found, "")),
        "; ".join(f"{name}: {then} → {now}" for name, then, now in entry.changed),
    )


def summary_text(histories: Sequence[History]) -> str:
    """Return what changed beyond chance, at the largest scale of each mode; and how many points are not alike."""
    sentences = []
    for mode, own in _by_mode(histories):
        largest = next((history for history in reversed(own) if len(history.entries) > 1), None)
        if largest is None:
            sentences.append(f"No scale of {mode} scaling was measured twice.")
            continue
        place = f"{largest.scale} ({mode} scaling)"
        steps = [_step(entry) for entry in largest.entries if entry.is_beyond_chance]
        sentences += [f"{place}: {'; '.join(steps)}."] if steps else [f"{place}: no change beyond chance."]
    unlike = sum(entry.found == UNLIKE for history in histories for entry in history.entries)
    are = "is" if unlike == 1 else "are"
    return " ".join((*sentences, f"{count(unlike, 'point')} {are} not like for like with the one before."))


def _step(entry: Entry) -> str:
    ratio = entry.ratio
    words = f"{number(ratio.value)} times {interval_text(ratio)}" if ratio else UNKNOWN
    changed = ", ".join(f"{name} {then} → {now}" for name, then, now in entry.changed) or "no field changed"
    return f"on {entry.ladder.on or 'a day that is not known'}, {entry.ladder.site}: {words} ({changed})"


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
                "found": entry.found,
                "changed": "; ".join(f"{name}: {then} -> {now}" for name, then, now in entry.changed),
            }


# --- The plot and the page.


def history_figure(ladders: Sequence[Ladder], histories: Sequence[History]) -> Figure:
    """Return samples/s per GPU and efficiency over the ladders, a line for each scale."""
    names = {f"{history.scale} {history.mode}": history for history in histories}
    with rc_context(STYLE):
        figure = Figure(figsize=(2 * PANEL_IN[0], PANEL_IN[1]), layout="constrained", facecolor=PAPER)
        left, right = figure.subplots(1, 2)
        for axes, title in ((left, "samples/s per GPU"), (right, "efficiency (%)")):
            axes.set_title(title)
            _draw(axes, ladders, histories, title)
        keys = [
            legend_key(name, color=COLOURS[k % len(COLOURS)], marker=MARKERS[k % len(MARKERS)], linestyle="none")
            for k, name in enumerate(names)
        ]
        if keys:
            figure.legend(handles=keys, loc="outside upper left", ncols=min(8, len(keys)))
    return figure


def _draw(axes: Axes, ladders: Sequence[Ladder], histories: Sequence[History], what: str) -> None:
    places = {id(ladder): k for k, ladder in enumerate(ladders)}
    if not histories:
        show_message(axes, "nothing measured")
        return
    for k, history in enumerate(histories):
        look: dict[str, Any] = {"color": COLOURS[k % len(COLOURS)], "marker": MARKERS[k % len(MARKERS)]}
        for part in _unbroken(history.entries):
            shown = [(places[id(entry.ladder)], value) for entry in part if (value := _value(entry, what)) is not None]
            axes.plot([place for place, _ in shown], [value for _, value in shown], linewidth=1.5, **look)
    axes.set_xticks(range(len(ladders)), [f"{ladder.on or 'no date'}\n{ladder.site}" for ladder in ladders])
    axes.set_xlim(-0.4, len(ladders) - 0.6)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, axis="y")


def _value(entry: Entry, what: str) -> float | None:
    if what.startswith("samples"):
        return entry.per_gpu
    return None if entry.point.efficiency is None else 100 * entry.point.efficiency


def _unbroken(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Yield the entries in parts; each begins with one that is not like for like, or the first."""
    part: list[Entry] = []
    for entry in entries:
        if part and entry.found in (FIRST, UNLIKE):
            yield part
            part = []
        part.append(entry)
    yield part


def _html(document: Document, svg: bytes) -> str:
    script = (REPORT / "report.js").read_text()
    return as_html(
        "history.html.j2",
        document=document,
        css=(REPORT / "report.css").read_text(),
        script=script,
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        pictures={"history": f"data:image/svg+xml;base64,{b64encode(svg).decode()}"},
    )
