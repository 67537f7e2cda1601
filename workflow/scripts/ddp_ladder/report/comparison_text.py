"""A comparison in the terminal: the verdict, a table of at most 80 columns, notes, and the files."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ddp_ladder.analysis.comparison import (
    Compared,
    Comparison,
    Panel,
    decisive,
    how_to_read,
    interval_text,
    number,
    sentences,
    step_text,
)
from ddp_ladder.common import formats
from ddp_ladder.common.formats import DASH, NARROW_SPACE

WIDTH = 80
LONGEST_NAME = 22
MOST_ROWS = 45  # of all tables; a longer comparison shows the largest scales only
MOST_LINES = 16  # of notes
HEADINGS = ("rank", "name", "ratio", "95 % interval", "step ms", "found")
RIGHT = ("rank", "ratio", "step ms")


def terminal_text(comparison: Comparison, files: Iterable[Path]) -> str:
    """Return what the command prints, without a final newline."""
    lines = [line for sentence in sentences(comparison) for line in _wrapped(sentence)]
    shown = _shown(comparison)
    for panel in shown:
        lines += ["", f"{panel.place} scaling", *_table(panel)]
    if len(shown) < len(comparison.panels):
        lines += ["", f"{formats.count(len(comparison.panels) - len(shown), 'smaller scale')}: see the files"]
    if notes := list(_notes(comparison, shown)):
        lines += ["", *notes]
    lines += ["", *_wrapped(how_to_read(comparison)), ""]
    lines += [f"written  {file}" for file in files]
    return "\n".join(lines).replace(NARROW_SPACE, " ").replace(DASH, "-").replace("“", '"').replace("”", '"')


def _wrapped(text: str, first: str = "", then: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=then, break_on_hyphens=False, break_long_words=False
    )


def _shown(comparison: Comparison) -> Sequence[Panel]:
    rows = sum(len(panel.rows) for panel in comparison.panels)
    return comparison.panels if rows <= MOST_ROWS else decisive(comparison) or comparison.panels[-1:]


def _table(panel: Panel) -> list[str]:
    rows = [HEADINGS, *(_cells(row) for row in panel.rows)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(HEADINGS))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            f"{cell:{'>' if heading in RIGHT else '<'}{width}}"
            for cell, heading, width in zip(cells, HEADINGS, widths, strict=True)
        )
        return "  ".join(padded).rstrip()

    return [line(rows[0]), "  ".join("-" * width for width in widths), *(line(row) for row in rows[1:])]


def _cells(row: Compared) -> tuple[str, ...]:
    name = row.name if len(row.name) <= LONGEST_NAME else f"{row.name[: LONGEST_NAME - 1]}…"
    return (
        str(row.rank or ""),
        name,
        number(row.ratio.value) if row.ratio else "1" if row.is_reference else DASH,
        interval_text(row.ratio) if row.ratio else "",
        step_text(row),
        row.found.partition(":")[0],
    )


def _notes(comparison: Comparison, shown: Sequence[Panel]) -> Iterator[str]:
    """Yield what each row changes, and what is to be known of it, each once with all its places."""
    places: dict[tuple[str, str], list[str]] = {}
    for panel in shown:
        for row in panel.rows:
            for note in notes_of(row):
                places.setdefault((row.name, note), []).append(panel.place)
    lines: list[str] = []
    for (name, note), where in places.items():
        everywhere = len(where) == len(shown)
        place = "" if everywhere else f" at {formats.in_short(where)}"
        lines += _wrapped(f"{name}{place}: {note}", "  ", "    ")
    yield from lines[:MOST_LINES]
    if len(lines) > MOST_LINES:
        yield "  more notes are in the files"
    for line in comparison.missing:
        yield from _wrapped(line, "  ", "    ")


def notes_of(row: Compared) -> tuple[str, ...]:
    """Return what a row changes, in what it is not alike, why it has no ratio, and its notes."""
    changes = ", ".join(row.changes)
    unlike = "; ".join(row.unlike)
    notes = dict.fromkeys((f"with {changes}" if changes else "", f"differs in {unlike}" if unlike else "", *row.notes))
    failed = row.obstacle if ":" in row.obstacle and not row.notes else ""
    return tuple(filter(None, (*notes, failed)))
