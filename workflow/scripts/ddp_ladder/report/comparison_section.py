"""The report's section on its variants: one table, a row each, a column per mode and scale. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ddp_ladder.analysis.comparison import (
    FASTER,
    SLOWER,
    Compared,
    Comparison,
    compare_variants,
    decisive,
    how_to_read,
    interval_text,
    number,
    sentences,
)
from ddp_ladder.common import formats
from ddp_ladder.report.comparison_files import comparison_texts
from ddp_ladder.report.comparison_text import notes_of
from ddp_ladder.report.view import ReportView

MOST_COLUMNS = 6  # of the largest scales; the others are in the files
STYLES = {FASTER: "ok", SLOWER: "failed"}


@dataclass(frozen=True)
class Cell:
    """A ratio with its interval and verdict. style: a class of the page."""

    text: str
    interval: str = ""
    found: str = ""
    style: str = ""
    value: float | None = None  # by which a column is sorted


@dataclass(frozen=True)
class ComparisonSection:
    """What the section shows. rows: variant, what it changes, a cell per heading. notes: variant and note."""

    comparison: Comparison
    headings: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[Cell, ...]], ...]
    notes: tuple[tuple[str, str], ...]

    @property
    def is_empty(self) -> bool:
        return not self.rows

    @property
    def sentences(self) -> tuple[str, ...]:
        return sentences(self.comparison)

    @property
    def how_to_read(self) -> str:
        return how_to_read(self.comparison)

    @property
    def files(self) -> dict[str, str | bytes]:
        """Return the text files of the comparison by name; none if it is empty."""
        return {} if self.is_empty else comparison_texts(self.comparison)

    @property
    def is_complete(self) -> bool:
        """Return True if every mode and scale has a column."""
        return len(self.headings) == len(self.comparison.panels)


def comparison_section(view: ReportView) -> ComparisonSection:
    """Return the comparison of a ladder's variants; empty if it has one, or nothing has been measured."""
    variants = {run.variant for run in view.results.plan.runs if not run.is_plain}
    if len(variants) < 2 or not view.anything_measured:
        return ComparisonSection(Comparison((), "", True), (), (), ())
    found = compare_variants(view.results.plan, view.results.records)
    by_size = sorted(found.panels, key=lambda each: each.scale.world_size, reverse=True)[:MOST_COLUMNS]
    panels = [each for each in found.panels if each in by_size]
    names = dict.fromkeys(row.name for each in (*decisive(found), *found.panels) for row in each.rows)
    every = {(each, row.name): row for each in range(len(panels)) for row in panels[each].rows}
    rows = []
    for name in names:
        own = [every.get((each, name)) for each in range(len(panels))]
        changes = next((", ".join(row.changes) for row in own if row and row.changes), "")
        rows.append((name, changes, tuple(map(_cell, own))))
    notes = dict.fromkeys((row.name, note) for each in found.panels for row in each.rows for note in _notes(row))
    return ComparisonSection(found, tuple(each.place for each in panels), tuple(rows), tuple(notes))


def _notes(row: Compared) -> list[str]:
    """Return the notes on a row but for what it changes, which has a column."""
    return [note for note in notes_of(row) if not (row.changes and note.startswith("with "))]


def _cell(row: Compared | None) -> Cell:
    if row is None:
        return Cell(formats.UNKNOWN)
    if row.ratio is None:
        text, value = ("1", 1.0) if row.is_reference else (formats.UNKNOWN, None)
        return Cell(text, found=row.found.partition(":")[0], value=value)
    style = STYLES.get(row.found, "")
    return Cell(number(row.ratio.value), interval_text(row.ratio), row.found, style, row.ratio.value)
