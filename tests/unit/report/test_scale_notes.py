"""Equal notes on scales are told once in every form of the report; of many scales the first ones are named."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from ddp_ladder.report.page import write_report
from ddp_ladder.report.results import LadderResults
from ddp_ladder.report.scale_notes import MOST_NAMED
from ddp_ladder.report.terminal_table import terminal_table
from make_records import make_plan_of, make_record, make_specs, records_by_name, repeated

NOTE = "two repeats make wide intervals"
VARIANTS = ["default", *(f"v{k}" for k in range(1, 9))]


def test_a_note_of_many_scales_is_one_line(tmp_path: Path) -> None:
    specs = make_specs(["1x1", "1x2"], repeats=2, variants=VARIANTS)
    records = [make_record(spec, repeated(1000.0 * spec.gpus, spec)) for spec in specs]
    found = LadderResults(make_plan_of(specs), records_by_name(records), {}, ())
    assert sum(NOTE in point.note for point in found.points) == 2 * len(VARIANTS) == MOST_NAMED + 6
    write_report(tmp_path, found, date(2026, 11, 20))
    page, markdown = ((tmp_path / "report" / name).read_text() for name in ("index.html", "scaling.md"))
    terminal = " ".join(terminal_table(found.points, {}).split())
    for text in (page, markdown, terminal):
        assert text.count(NOTE) == 1
        assert " and 6 more" in text.partition(NOTE)[0][-40:]
    assert (tmp_path / "report/scaling.csv").read_text().count(NOTE) == 2 * len(VARIANTS)
