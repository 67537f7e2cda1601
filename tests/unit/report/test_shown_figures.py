"""Every output of the report takes its figures from the table of figures, and shows a new one by itself."""

import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pandas as pd
import pytest
from ddp_ladder.gates import figures, scaling
from ddp_ladder.gates.figures import Column, Figure, Table
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.records.record import Record
from ddp_ladder.report.page import write_report
from ddp_ladder.report.results import LadderResults
from ddp_ladder.report.terminal import terminal_table
from make_records import make_plan_of, make_record, make_specs, records_by_name


def report_of(directory: Path) -> dict[str, str]:
    """The text files of a report, and the table in the terminal."""
    specs = make_specs(["1x1", "1x2"])
    records = records_by_name([make_record(spec, 900.0 * spec.world_size) for spec in specs])
    files = write_report(directory, LadderResults(make_plan_of(specs), records, {}, ()), date(2026, 11, 20))
    texts = {path.name: path.read_text() for path in files if path.suffix not in (".png", ".svg")}
    return {**texts, "terminal": terminal_table(scaling.scale_points(specs, records), {})}


@dataclass(frozen=True)
class WiderPoint(ScalePoint):
    """A point with one more figure."""

    blocks: float | None = None


def blocks(run: Record) -> float | None:
    return float(len(run.throughput.blocks_samples_per_s)) if run.throughput else None


def test_a_new_figure_is_shown_as_its_row_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    places: tuple[Table, ...] = ("csv", "page", "markdown", "terminal", "runs")
    column = Column("blocks", "number of blocks", "in all", lambda value: f"<{value:.3f}>", places, of_run=blocks)
    new = Figure("blocks, counted", "1", "how many blocks there are", (column,))
    before = report_of(tmp_path / "before")
    monkeypatch.setattr(figures, "FIGURES", (*figures.FIGURES, new))
    for module in (figures, scaling):
        monkeypatch.setattr(module, "ScalePoint", WiderPoint)
    after = report_of(tmp_path / "after")
    count = blocks(make_record(make_specs(["1x1"])[0]))
    assert count is not None
    frame = pd.read_csv(tmp_path / "after/report/scaling.csv")
    assert list(frame.columns)[-1] == "blocks"
    assert frame["blocks"].tolist() == [count, count]
    for name, head, value, cells in (
        (
            "index.html",
            'number of blocks<span class="range">(in all)',
            f"&lt;{count:.3f}&gt;",
            2 + 6,
        ),  # scales and runs
        ("scaling.md", "| number of blocks (in all) |", f"| &lt;{count:.3f}&gt; |", 2 + 6),
        ("terminal", "number of blocks", f"<{count:.3f}>", 2),
    ):
        assert head in after[name]
        assert after[name].count(value) == cells
        assert before[name].count(value) == 0
    for name in ("index.html", "scaling.md"):
        assert re.search(r"blocks, counted\W.*\W1\W.*how many blocks there are", after[name], re.DOTALL)
