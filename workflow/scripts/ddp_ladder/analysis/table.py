"""A table of measured scales, as people write it and as scaling.csv is: read strictly, with one message per mistake."""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from ddp_ladder.analysis.measured import Series, series_from
from ddp_ladder.common.messages import Problem, UserError, printable
from ddp_ladder.settings.terms import MOST_GPUS, PLAIN_VARIANT, REFERENCE_VARIANT, Mode, Scale

NEEDED = ("nodes", "gpus_per_node", "samples_per_s")
ENDS = ("samples_per_s_low", "samples_per_s_high")
OPTIONAL = ("mode", "variant", *ENDS)
MOST_NODES = 100_000
MOST_ROWS = 100_000
LEAST_SAMPLES_PER_S, MOST_SAMPLES_PER_S = 1e-6, 1e15
_HEADER = f"a header with {', '.join(NEEDED)}, and perhaps mode (weak or strong; default weak) and variant"
_EXAMPLE = "nodes,gpus_per_node,samples_per_s"


@dataclass(frozen=True)
class _Row:
    where: str
    variant: str
    mode: Mode
    scale: Scale
    samples_per_s: float
    samples_per_s_low: float | None
    samples_per_s_high: float | None
    status: str
    smallest_baseline: str


def read_series(file: Path, variant: str | None = None) -> tuple[Series, ...]:
    """Return the series of each mode in a CSV file, weak first. Several rows of one scale are repeats.

    variant: of a file with that column; without one, "default", or the only variant there is. In such a file, which the
    report writes, rows without samples_per_s are scales that were not measured. Scales that failed, or that do not
    compare with most others, are left out. Raises UserError.
    """
    rows = list(_rows(file))
    chosen = _variant(file, rows, variant)
    own = [row for row in rows if row.variant == chosen]
    if other := next((row for row in own if row.status == "not comparable" and not row.smallest_baseline), None):
        raise _problem(
            f"{other.where}: status",
            f"{other.scale} does not compare with the smallest scale",
            other.status,
            "scales that ran the same program",
            "write a table of such scales alone, with the columns nodes, gpus_per_node and samples_per_s",
        )
    modes = cast(tuple[Mode, ...], get_args(Mode))
    every = (series_from(mode, [row for row in own if row.mode == mode]) for mode in modes)
    if found := tuple(series for series in every if series.points):
        return found
    raise _problem(f"{file}: status", "no scale counts", ", ".join(dict.fromkeys(row.status for row in own)), "ok")


def _variant(file: Path, rows: Sequence[_Row], wanted: str | None) -> str:
    names = list(dict.fromkeys(row.variant for row in rows if row.variant != PLAIN_VARIANT))
    if not names:
        raise _problem(str(file), "no scale was measured", next="add a row with samples_per_s for each measured scale")
    if wanted is None:
        wanted = REFERENCE_VARIANT if REFERENCE_VARIANT in names else names[0]
        if len(names) > 1 and wanted != REFERENCE_VARIANT:
            raise _problem(f"{file}: variant", "there are several", ", ".join(names), next="choose one with --variant")
    if wanted not in names:
        raise _problem("--variant", f"{file} has no such variant", wanted, ", ".join(names))
    return wanted


def _rows(file: Path) -> Iterator[_Row]:
    lines = _lines(file)
    _, first = next(lines, (1, []))
    header = [cell.strip() for cell in first]
    _check_header(file, header)
    for number, cells in lines:
        where = f"{file}, line {number}"
        if not any(cell.strip() for cell in cells):
            continue
        if number > MOST_ROWS:
            raise _problem(where, "the table is too long", allowed=f"at most {MOST_ROWS:,} lines")
        if len(cells) != len(header):
            raise _problem(
                where,
                "the number of cells is not that of the header",
                f"{len(cells)} cells",
                f"{len(header)} cells, separated by commas",
                "write numbers without thousands separators: 16621.0",
            )
        row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        if "variant" not in row or (row["samples_per_s"] and row.get("status") != "failed"):
            yield _row(where, row)


def _lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each line's number and cells."""
    lines = csv.reader(_text(file).splitlines())
    try:
        for cells in lines:
            yield lines.line_num, cells
    except csv.Error as error:
        raise _problem(f"{file}, line {lines.line_num}", "it is no line of a CSV file", str(error)) from None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise _problem(
            str(file), "it is no text in UTF-8", allowed="a CSV file", next="save it as CSV (UTF-8)"
        ) from None
    except OSError as error:
        raise _problem(str(file), f"it cannot be read: {error.strerror}", next="check the path of --table") from None


def _check_header(file: Path, header: Sequence[str]) -> None:
    where = f"{file}, line 1"
    for name in (*NEEDED, *OPTIONAL):
        if header.count(name) > 1:
            raise _problem(f"{where}: {name}", "the column is there twice", allowed=_HEADER)
    missing = [name for name in NEEDED if name not in header]
    if missing:
        found = printable(", ".join(header))[:200] or "an empty line"
        hint = next((guess for name in missing if (guess := _meant(name, header))), f"begin the file with {_EXAMPLE}")
        raise _problem(f"{where}: {missing[0]}", "the column is missing", found, _HEADER, hint)


def _meant(name: str, header: Sequence[str]) -> str | None:
    separators = [mark for mark in (";", "\t") if any(mark in cell for cell in header)]
    if separators:
        return "separate the columns by commas"
    close = difflib.get_close_matches(name, [cell for cell in header if cell not in (*NEEDED, *OPTIONAL)], n=1)
    return f"rename the column {close[0]}" if close else None


def _row(where: str, row: Mapping[str, str]) -> _Row:
    mode = row.get("mode") or "weak"
    if mode not in get_args(Mode):
        raise _problem(f"{where}: mode", "not a mode", mode, "weak or strong")
    scale = Scale(_count(where, "nodes", row, MOST_NODES), _count(where, "gpus_per_node", row, MOST_GPUS))
    variant = row.get("variant") or REFERENCE_VARIANT
    rate, (low, high) = _rate(where, row["samples_per_s"]), (_end(where, name, row) for name in ENDS)
    if not (low or rate) <= rate <= (high or rate):
        raise _problem(
            f"{where}: {ENDS[0]}", "not an interval around samples_per_s", f"{low} to {high}", f"around {rate}"
        )
    status, smallest = row.get("status") or "ok", row.get("smallest_baseline", "")
    return _Row(where, variant, cast(Mode, mode), scale, rate, low, high, status, smallest)


def _count(where: str, name: Literal["nodes", "gpus_per_node"], row: Mapping[str, str], most: int) -> int:
    text = row[name]
    if text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= most:
        return int(text)
    raise _problem(f"{where}: {name}", "not a possible number", text or "nothing", f"a whole number from 1 to {most}")


def _end(where: str, name: str, row: Mapping[str, str]) -> float | None:
    text = row.get(name)
    return _rate(where, text, name) if text else None


def _rate(where: str, text: str, name: str = "samples_per_s") -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if LEAST_SAMPLES_PER_S <= rate <= MOST_SAMPLES_PER_S and "_" not in text:
        return rate
    raise _problem(
        f"{where}: {name}",
        "not a possible rate",
        text or "nothing",
        f"samples per second of all GPUs together, such as 16621.0; at least {LEAST_SAMPLES_PER_S:g}",
        "write it with a point and no thousands separators: 16621.0"
        if "," in text
        else "leave out a scale that was not measured",
    )


def scale_of(text: str, option: str = "--at") -> Scale:
    """Return the scale written as nodes x GPUs per node. Raises UserError."""
    parts = text.strip().split("x")
    limits = (MOST_NODES, MOST_GPUS)
    if len(parts) == 2 and all(part.isascii() and part.isdigit() and len(part) < 9 for part in parts):
        counts = [int(part) for part in parts]
        if all(1 <= count <= most for count, most in zip(counts, limits, strict=True)):
            return Scale(*counts)
    allowed = f"nodes x GPUs per node, at most {MOST_NODES}x{MOST_GPUS}"
    raise _problem(option, "not a scale", text, allowed, "write 8x4 for 8 nodes with 4 GPUs each")


def _problem(
    where: str,
    what: str,
    found: str | None = None,
    allowed: str | None = None,
    next: str | None = None,  # noqa: A002
) -> UserError:
    return UserError(Problem(where, what, found=found, allowed=allowed, next=next))
