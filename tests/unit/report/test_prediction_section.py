"""The section "Prediction" of the report: forecasts beside what came, and how far it scales."""

from __future__ import annotations

import shutil
from dataclasses import replace
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
from ddp_ladder.settings.config_keys import GateThresholds
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


def test_where_to_stop_against_the_smallest_scale_that_compares() -> None:
    specs = make_specs([*RISING])
    other = {"1x1": {"autocast_dtype": "float16"}}
    records = [make_record(spec, RISING[str(spec.scale)], fingerprint=other.get(str(spec.scale))) for spec in specs]
    plan = make_plan_of(specs)
    plan = replace(plan, gates={stage: GateThresholds(min_efficiency=0.8) for stage in plan.stages})
    (found,) = outlooks(plan, scale_points(specs, records_by_name(records)))
    against = "efficiency against 1x2 (the scales from there on do not compare with 1x1) is expected up to "
    assert against in found.in_words


def test_without_forecasts_and_with_two_scales_there_is_no_section(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path, scales=("1x1", "1x2"), repeats=1)
    page, text = report_of(tmp_path, plan)
    assert ">Prediction</h2>" not in page
    assert "## Prediction" not in text


@pytest.mark.parametrize(
    ("min_efficiency", "words", "rates"),
    [
        (0.8, "weak scaling: at least 80 % efficiency is expected up to ", RISING),
        (0.999, "weak scaling: at least 100 % efficiency is expected up to 1x1", RISING),
        (0.01, "is not known from these scales: measure a larger one", RISING),
        (0.87, "; the whole interval lies above it up to 4x2", {**RISING, "2x2": 3400.0}),
        (None, "", RISING),
    ],
)
def test_where_to_stop(tmp_path: Path, min_efficiency: float | None, words: str, rates: dict[str, float]) -> None:
    plan = write_ladder(tmp_path, scales=tuple(rates), rates=rates, repeats=1, min_efficiency=min_efficiency)
    records = {spec.name: RunRecords(tmp_path).believed(spec) for spec in plan.runs}
    (found,) = outlooks(plan, scale_points(plan.runs, records))
    assert words in found.in_words
    assert bool(words) == bool(found.in_words)
    assert found.at.scale == "8x2"
    if words:
        page, text = report_of(tmp_path, plan)
        assert words[5:60] in page
        assert words[5:60] in text
