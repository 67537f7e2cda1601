"""The table at the end of a ladder in the terminal: plain text, at most 100 columns, no colour."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddp_ladder.common.formats import DASH, NARROW_SPACE, factor, interval, percent, significant
from ddp_ladder.gates.file import GateView
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.report.headline import gate_words

WIDTH = 100
GAP = "  "
LONGEST_NAME = 16
QUIET = ("ok",)  # a status that the figures already show
TEXT_COLUMNS = ("scale", "mode", "variant", "efficiency", "gate", "status")


def terminal_table(
    points: Sequence[ScalePoint],
    gates: Mapping[str, GateView],
    report: Path | None = None,
) -> str:
    """Return the table, its notes and the path of the report, without a final newline."""
    if not points:
        return "no run is planned"
    rows = [_cells(point, gates) for point in points]
    lines = _layout(rows, _columns(rows)) + _notes(points)
    if report is not None:
        lines += ["", f"report   {report / 'index.html'}", f"figures  {report / 'scaling.csv'}"]
    return "\n".join(lines).replace(NARROW_SPACE, " ").replace(DASH, "-")


def _cells(point: ScalePoint, gates: Mapping[str, GateView]) -> dict[str, str]:
    efficiency = percent(point.efficiency)
    if point.efficiency is not None and point.world_size > 1:
        low, high = percent(point.efficiency_low), percent(point.efficiency_high)
        efficiency = f"{efficiency:>5} {interval(low, high)}"
    return {
        "mode": point.mode,
        "variant": textwrap.shorten(point.variant, LONGEST_NAME, placeholder="…"),
        "scale": str(point.scale),
        "GPUs": str(point.world_size),
        "samples/s": significant(point.samples_per_s),
        "speed-up": factor(point.speedup),
        "efficiency": f"{efficiency:>5}",
        "gate": gate_words(gates, point),
        "status": "" if point.status in QUIET else point.status,
    }


def _columns(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the columns: mode and variant only if there are several, status only if one is not empty."""
    optional = {"mode": 1, "variant": 1}
    columns = [name for name in rows[0] if name not in optional or len({row[name] for row in rows}) > optional[name]]
    return columns if any(row["status"] for row in rows) else columns[:-1]


def _layout(rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> list[str]:
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in columns}

    def line(cells: Mapping[str, str]) -> str:
        return GAP.join(
            f"{cells[name]:{'<' if name in TEXT_COLUMNS else '>'}{widths[name]}}" for name in columns
        ).rstrip()

    header = line({name: name for name in columns})
    rule = GAP.join("-" * widths[name] for name in columns)
    return [header, rule, *(line(row) for row in rows)]


def _notes(points: Sequence[ScalePoint]) -> list[str]:
    """Return the notes below the table; equal notes are shown once, with all their scales."""
    places: dict[str, list[ScalePoint]] = {}
    for point in points:
        if point.note:
            places.setdefault(point.note, []).append(point)
    several = len({(point.mode, point.variant) for point in points}) > 1
    lines = []
    for note, where in places.items():
        names = ", ".join(
            f"{point.scale} {point.mode} {point.variant}" if several else str(point.scale) for point in where
        )
        lines += textwrap.wrap(f"{names}: {note}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    return ["", *lines] if lines else []
