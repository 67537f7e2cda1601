"""The table at the end of a ladder in the terminal: plain text, at most 100 columns, no colour."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddp_ladder.common.formats import DASH, NARROW_SPACE
from ddp_ladder.gates.figures import Column, columns
from ddp_ladder.gates.points import ScalePoint, findings_across_scales
from ddp_ladder.gates.verdict import Verdict
from ddp_ladder.report.headline import gate_words
from ddp_ladder.report.scale_notes import scale_names, scale_notes

WIDTH = 100
GAP = "  "
LONGEST_NAME = 16
QUIET = ("ok",)  # a status that the figures already show


def terminal_table(
    points: Sequence[ScalePoint],
    gates: Mapping[str, Verdict],
    report: Path | None = None,
) -> str:
    """Return the table, its notes and the path of the report, without a final newline."""
    if not points:
        return "no run is planned"
    rows = [_cells(point, gates) for point in points]
    lines = _layout(rows, _names(rows)) + _notes(points)
    if report is not None:
        lines += ["", f"report   {report / 'index.html'}", f"figures  {report / 'scaling.csv'}"]
    return "\n".join(lines).replace(NARROW_SPACE, " ").replace(DASH, "-")


def _cells(point: ScalePoint, gates: Mapping[str, Verdict]) -> dict[str, str]:
    return {
        "mode": point.mode,
        "variant": textwrap.shorten(point.variant, LONGEST_NAME, placeholder="…"),
        "scale": str(point.scale),
        **{column.heading: _figure(column, point) for column in columns("terminal")},
        "gate": gate_words(gates, point),
        "status": "" if point.status in QUIET else point.status,
    }


def _figure(column: Column, point: ScalePoint) -> str:
    text = column.shown(point)
    return f"{text:>5} {column.interval(point)}".rstrip() if "terminal" in column.interval_in else text


def _names(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the columns: mode and variant only if there are several, status only if one is not empty."""
    names = [name for name in rows[0] if name not in ("mode", "variant") or len({row[name] for row in rows}) > 1]
    return names if any(row["status"] for row in rows) else names[:-1]


def _layout(rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> list[str]:
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    right = [column.heading for column in columns("terminal") if "terminal" not in column.interval_in]

    def line(cells: Mapping[str, str]) -> str:
        return GAP.join(f"{cells[name]:{'>' if name in right else '<'}{widths[name]}}" for name in names).rstrip()

    header = line({name: name for name in names})
    rule = GAP.join("-" * widths[name] for name in names)
    return [header, rule, *(line(row) for row in rows)]


def _notes(points: Sequence[ScalePoint]) -> list[str]:
    """Return the notes and findings below the table; equal ones are shown once, with all their scales."""
    several = len({(point.mode, point.variant) for point in points}) > 1
    across = findings_across_scales(points)
    found = [(scale_names(where, several), f"{each.in_words}; next: {each.next}") for each, where in across]
    lines = []
    for where, note in (*scale_notes(points, several), *found):
        lines += textwrap.wrap(f"{where}: {note}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    return ["", *lines] if lines else []
