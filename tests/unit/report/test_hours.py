"""The hours that an application asks for, against sums by hand."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from ddp_ladder.analysis.decisions import Work
from ddp_ladder.report.document import in_words
from ddp_ladder.report.hours import EUROHPC, SWISS_AI, milestone_table, milestones
from ddp_ladder.report.view import ReportView
from make_jobs import make_row
from make_records import make_record, make_specs, repeated
from make_results import make_results

RATES = {"1x1": 1000.0, "1x4": 3800.0, "2x4": 7000.0, "4x4": 9000.0}  # 4x4: 56 %, below every threshold


def view_of(modes: Sequence[str] = ("weak",), **work: Any) -> ReportView:
    specs = make_specs(list(RATES), modes=list(modes), device="cuda")
    records = [make_record(spec, repeated(RATES[str(spec.scale)], spec), startup_s=36.0) for spec in specs]
    return ReportView(make_results(records, work=Work(**work)), date(2026, 11, 24))


def test_that_runs_which_were_ended_early_may_lack_validation_is_said() -> None:
    view = view_of(samples=1e6)
    records = {
        name: record.replace(ranks=tuple(rank.replace(ended_by="max_steps") for rank in record.ranks))
        for name, record in view.results.records.items()
    }
    for each, said in ((view, False), (replace(view, results=replace(view.results, records=records)), True)):
        _, notes = milestone_table(each, EUROHPC)
        assert any("ended early" in in_words(item) for item in notes.items) == said


def rows(view: ReportView, headings: Sequence[str]) -> list[dict[str, str]]:
    table, _ = milestone_table(view, headings)
    return [
        dict(zip(headings, (in_words(cell).replace("\u00a0", " ") for cell in row), strict=True)) for row in table.rows
    ]


def test_node_hours_are_runs_times_wall_hours_times_nodes_with_the_reserve() -> None:
    """One run: start-up, and 126 million samples at 0.9 of the steps' 7,000 a second, which these records have."""
    best, cheapest = milestones(view_of(samples=126e6, runs=12, reserve=0.25))
    wall_h = (36 + 126e6 / (0.9 * 7000)) / 3600
    assert (str(best.point.scale), best.training.hours) == ("2x4", pytest.approx(wall_h))
    assert best.training.of_all.nodes == pytest.approx(2 * 12 * wall_h * 1.25)
    rate_low, rate_high = best.point.of("samples_per_s").low, best.point.of("samples_per_s").high
    assert [end / best.of_steps.value for end in best.of_steps.ends] == pytest.approx(
        [7000 / rate_high, 7000 / rate_low]
    )
    assert str(cheapest.point.scale) == "1x4"


@pytest.mark.parametrize(
    ("work", "steps"),
    [
        ({"samples": 512e4}, {"2x4": "10,000", "1x4": "20,000"}),
        ({"steps": 500}, {"2x4": "500", "1x1": "500"}),
        ({"epochs": 2, "dataset_size": 51_200}, {"2x4": "200", "1x4": "400"}),
    ],
)
def test_the_steps_of_a_run_follow_from_the_global_batch_of_its_scale(
    work: dict[str, Any], steps: dict[str, str]
) -> None:
    """Weak scaling with 64 per GPU."""
    table = rows(view_of(**work, runs=3), EUROHPC)
    assert {row["run type"].rpartition(" ")[2]: row["steps per run"] for row in table} == steps
    assert [row["runs"] for row in table] == ["3", "3"]


def test_each_mode_has_its_rows_and_strong_efficiency_is_only_of_strong_scaling() -> None:
    table = rows(view_of(("weak", "strong"), samples=1e6, runs=1), SWISS_AI)
    assert [(row["run type"], row["strong efficiency"]) for row in table] == [
        ("training, weak scaling, recommended 2x4", "weak: 88 %"),
        ("training, weak scaling, cheapest 1x1", "weak: 100 %"),
        ("training, strong scaling, recommended 2x4", "88 %"),
        ("training, strong scaling, cheapest 1x1", "100 %"),
    ]


def test_reserve_restarts_and_waits_are_said_as_measured() -> None:
    view = view_of(samples=1e6, runs=2)
    jobs = tuple(make_row(queue_wait_s=wait_s) for wait_s in (30.0, 600.0, 60.0))
    view = replace(view, results=replace(view.results, jobs=jobs))
    _, notes = milestone_table(view, EUROHPC)
    said = " ".join(map(in_words, notes.items)).replace("\u00a0", " ")
    assert "a reserve of 10 % for failed jobs" in said
    assert "contain one start-up, and validation and checkpoints in the proportion of the measured runs" in said
    assert "36 s at 2x4, 0.0200 node hours" in said
    assert "3 jobs of these measurements waited 1 min 00 s in the queue (median; the longest 10 min 00 s)" in said
