"""The report's line on the nodes."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from html import unescape
from pathlib import Path

from ddp_ladder.report.machine_table import machine_lines
from ddp_ladder.report.page import write_report
from ddp_ladder.report.results import LadderResults
from make_machine import make_machine
from make_records import make_plan_of, make_record, make_specs, records_by_name

HOSTILE = "<script>alert('x')</script>|`$\\"


def test_one_line_unless_nodes_differ() -> None:
    one, two = make_machine("2x1"), make_machine("2x1", "node2", driver="550.54.15")
    assert machine_lines({"1x1": [make_machine()], "2x1": [one]}) == (one.in_words,)
    assert machine_lines({"1x1": [make_machine()], "2x1": [one, two]}) == (
        f"{one.in_words} (at 1x1, 2x1 on node1)",
        f"{two.in_words} (at 2x1 on node2)",
    )
    assert machine_lines({}) == ()


def test_it_is_on_the_page_and_in_the_text(tmp_path: Path) -> None:
    specs = make_specs(["1x1", "1x2"])
    results = LadderResults(make_plan_of(specs), records_by_name([make_record(spec) for spec in specs]), {}, ())
    described = replace(results, machines={"1x1": [make_machine(system=HOSTILE)]})
    for found, is_there in ((described, True), (results, False)):
        write_report(tmp_path, found, date(2026, 11, 20))
        page = (tmp_path / "report/index.html").read_text()
        text = (tmp_path / "report/scaling.md").read_text()
        assert (">The machine</h2>" in page) == ("## The machine" in text) == is_there
        assert HOSTILE not in page
        assert (HOSTILE in unescape(page)) == is_there
