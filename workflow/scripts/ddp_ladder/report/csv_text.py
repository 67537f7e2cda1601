"""The text of a CSV file of the report. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a header and the rows: fractions with six digits, whole numbers with all of theirs, unknown is empty."""
    cells = [[f"{value:.6g}" if isinstance(value, float) else value for value in row] for row in rows]
    return str(pd.DataFrame(cells, columns=list(columns), dtype=object).to_csv(index=False, lineterminator="\n"))
