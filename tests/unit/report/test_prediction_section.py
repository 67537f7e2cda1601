"""The section "Prediction" of the report: forecasts beside what came, and how far it scales."""

from __future__ import annotations

import shutil
from datetime import date
from html import unescape
from pathlib import Path

import pytest
from ddp_ladder.analysis.prediction import outlooks
from ddp_ladder.climb.forecasts import after_gate
from ddp_ladder.gates.gate import judge
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.plan.plan import Plan
from ddp_ladder.records.run_records import RunRecords
from ddp_ladder.report.page import write_report
from ddp_ladder.report.results import read_results
from make_records import make_plan_of, make_record, make_specs, records_by_name
from make_runs import RATES, write_ladder, write_run

RISING = {"1x1": 1000.0, "1x2": 1980.0, "2x2": 3700.0, "4x2": 7000.0}


def report_of(results: Path, plan: Plan) -> tuple[str, str]:
    write_report(results, read_results(results, plan), date(2026, 11, 22))
    folder = results / "report"
    return unescape((folder / "index.html").read_text()), (folder / "scaling.md").read_text()


def test_a_forecast_stands_beside_what_was_measured(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path, repeats=1)
    shutil.rmtree(tmp_path / "runs/default/weak/2x1")
    (line,) = after_gate(plan, judge(plan, "stage2", tmp_path), RunRecords(tmp_path))
    page, text = report_of(tmp_path, plan)
    assert line in page
    assert "| measured against forecast | inside |" not in text
    write_run(tmp_path, plan.runs[-1], RATES["2x1"])
    page, text = report_of(tmp_path, plan)
    assert line not in page
    assert (
        "| scale | forecast (samples/s) | 90 % interval | measured | measured against forecast | inside | made from |"
        in text
    )
    (row,) = [each for each in text.splitlines() if each.startswith("| 2x1 |") and each.endswith("| 1x1, 1x2 |")]
    assert " 1,738 |" in row
    assert "| yes |" in row


def test_without_forecasts_and_with_two_scales_there_is_no_section(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path, scales=("1x1", "1x2"), repeats=1)
    page, text = report_of(tmp_path, plan)
    assert ">Prediction</h2>" not in page
    assert "## Prediction" not in text


@pytest.mark.parametrize("other", [{}, {"1x1": {"autocast_dtype": "float16"}}])
def test_the_next_larger_scale_is_predicted(other: dict[str, dict[str, str]]) -> None:
    specs = make_specs([*RISING])
    records = [make_record(spec, RISING[str(spec.scale)], fingerprint=other.get(str(spec.scale))) for spec in specs]
    (found,) = outlooks(make_plan_of(specs), scale_points(specs, records_by_name(records)))
    assert found.in_words.startswith("8x2 (weak scaling): 1")
    assert found.in_words.endswith(f" efficiency against {'1x2' if other else '1x1'}")


def test_it_is_shown_on_the_page_and_in_markdown(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path, scales=tuple(RISING), rates=RISING, repeats=1)
    page, text = report_of(tmp_path, plan)
    assert "redicted, not measured: 8x2 (weak scaling): " in page
    assert "redicted, not measured: 8x2 (weak scaling): " in text
