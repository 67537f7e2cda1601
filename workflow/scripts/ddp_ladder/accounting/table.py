"""results/accounting.csv: one row per job. Rows of earlier starts are kept, also if their jobs' files are gone."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ddp_ladder.accounting.row import JobRow
from ddp_ladder.common.files import write_atomically
from ddp_ladder.common.formats import in_short
from ddp_ladder.common.model import first_error

COLUMNS = tuple(JobRow.model_fields)
KNOWN_BETTER = {"none": 0, "scontrol": 1, "sacct": 2}
SIGNIFICANT = 10


def accounting_file(results: Path) -> Path:
    """Return the path of the table."""
    return results / "accounting.csv"


def read_rows(results: Path) -> tuple[JobRow, ...]:
    """Read the rows; none if there is no file. Raises OSError, or ValueError that names the file and the line.

    A file of an earlier version may lack columns, whose cells are then empty.
    """
    path = accounting_file(results)
    try:
        header, *lines = [*csv.reader(io.StringIO(path.read_text()))] or [[]]
    except FileNotFoundError:
        return ()
    except csv.Error as error:
        raise ValueError(f"{path}: {error}") from None
    except ValueError as error:  # not UTF-8
        raise ValueError(f"{path}: this is no table: {error}") from None
    if not header:
        raise ValueError(f"{path}: this is no table: it is empty")
    if unknown := [name for name in header if name not in COLUMNS]:
        raise ValueError(f"{path}: this version has no column {in_short(unknown)}")
    return tuple(_row(path, number, dict(zip(header, line, strict=False))) for number, line in enumerate(lines, 2))


def _row(path: Path, number: int, cells: Mapping[str, str]) -> JobRow:
    try:
        return _FROM_TEXT.validate_strings({name: text for name, text in cells.items() if text != ""})
    except ValidationError as error:
        raise ValueError(f"{path}, line {number}: {first_error(error)}") from None


def text_of(rows: Iterable[JobRow]) -> str:
    """Return the file's text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_cell(value) for value in dict(row).values()] for row in rows)
    return out.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.{SIGNIFICANT}g}" if isinstance(value, float) else str(value)


def merged(known: Sequence[JobRow], new: Iterable[JobRow]) -> tuple[JobRow, ...]:
    """Return all rows, by the times of their ends: a new one that knows more replaces the one of its job."""
    rows = {(row.scale, row.job_id): row for row in known}
    for row in new:
        key = (row.scale, row.job_id)
        if key not in rows or _knows(row) > _knows(rows[key]):
            rows[key] = row
    return tuple(sorted(rows.values(), key=lambda row: (row.ended_at, row.job_id)))


def _knows(row: JobRow) -> tuple[int, bool]:
    return KNOWN_BETTER[row.source], row.memory_source == "sacct"


def write_rows(results: Path, rows: Iterable[JobRow]) -> None:
    """Write the file. Raises NotWritten."""
    write_atomically(accounting_file(results), text_of(rows))


_FROM_TEXT: TypeAdapter[JobRow] = TypeAdapter(JobRow)
