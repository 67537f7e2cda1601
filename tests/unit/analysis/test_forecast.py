"""Forecasts from real run directories: what they are made from, and when they are written again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ddp_ladder.analysis.forecast import (
    Forecast,
    RunLength,
    SeriesForecast,
    error_lines,
    forecast_errors,
    forecast_file,
    forecast_lines,
    hours,
    make_forecast,
    planned_forecasts,
    read_forecast,
    wall_s_at,
    write_forecast,
)
from ddp_ladder.common.files import write_json
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.plan.plan import Plan
from ddp_ladder.records.run_records import RunRecords
from ddp_ladder.settings.terms import Scale
from make_records import make_plan_of, make_specs
from make_runs import RATES, write_ladder, write_run


def made(
    plan: Plan, stage: str, results: Path, left_out: tuple[str, ...] = (), is_open: bool = True
) -> Forecast | None:
    found = make_forecast(plan, stage, RunRecords(results), left_out, is_open)
    write_forecast(results, stage, found)
    return found


def without(results: Path, scale: str) -> None:
    for path in (results / "runs").glob(f"*/*/{scale}"):
        shutil.rmtree(path)


def first(found: Forecast | None) -> SeriesForecast:
    assert found is not None
    return found.scales[0].series[0]


def test_the_figures_fit_together(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path)
    without(tmp_path, "2x1")
    found = made(plan, "stage3", tmp_path)
    assert found is not None
    (scale,), one = found.scales, first(found)
    assert (scale.scale, scale.gpus, one.runs, one.measured) == ("2x1", 2, 2, ("1x1", "1x2"))
    assert one.samples_per_s_low < RATES["2x1"] < one.samples_per_s_high
    assert one.efficiency == pytest.approx(one.samples_per_s / 2 / RATES["1x1"], rel=0.01)


def test_it_is_written_again_until_a_run_has_begun_and_never_after(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path)
    spec = plan.runs[-1]
    without(tmp_path, "2x1")
    before = first(made(plan, "stage3", tmp_path))
    for one in plan.runs[2:4]:
        write_run(tmp_path, one, 1500.0)
    slower = first(made(plan, "stage3", tmp_path))
    assert slower.samples_per_s < 0.9 * before.samples_per_s
    write_run(tmp_path, spec, 1740.8)
    for one in plan.runs[2:4]:
        write_run(tmp_path, one, 1843.2)
    assert first(made(plan, "stage3", tmp_path)) == slower
    assert first(made(plan, "stage3", tmp_path, is_open=False)) == slower


def test_a_closed_gate_leaves_no_forecast_of_what_has_not_begun(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path)
    without(tmp_path, "2x1")
    made(plan, "stage3", tmp_path)
    assert made(plan, "stage3", tmp_path, is_open=False) is None
    assert not forecast_file(tmp_path, "stage3").exists()


def test_other_settings_make_it_void(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path)
    without(tmp_path, "2x1")
    made(plan, "stage3", tmp_path)
    assert [one.scale for _, one in planned_forecasts(tmp_path, plan)] == ["2x1"]
    changed = make_plan_of(make_specs(["1x1", "1x2", "2x1"], repeats=2, min_steps=31))
    assert not [*planned_forecasts(tmp_path, changed)]


def test_a_damaged_file_is_written_again(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path)
    without(tmp_path, "2x1")
    write_json(forecast_file(tmp_path, "stage3"), {"schema_version": 3})
    assert not [*planned_forecasts(tmp_path, plan)]
    with pytest.raises(ValueError, match=r"stage3\.json: not a forecast: stage is missing"):
        read_forecast(tmp_path, "stage3")
    assert first(made(plan, "stage3", tmp_path)).measured == ("1x1", "1x2")


def test_words_before_and_after(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path, repeats=1)
    without(tmp_path, "2x1")
    made(plan, "stage3", tmp_path)
    ((job, forecast),) = planned_forecasts(tmp_path, plan)
    one = forecast.series[0].replace(samples_per_s=63000.4, samples_per_s_low=58000.0, samples_per_s_high=66000.0)
    one = one.replace(efficiency=0.853, run_s=720.0)
    (line,) = forecast_lines(job, forecast.replace(series=(one,)), "GPU")
    assert line == "stage3 2x1: forecast 63,000 samples/s [58,000-66,000], 85 % efficiency, 0.400 GPU h"
    (short,) = forecast_lines(job, forecast.replace(series=(one.replace(run_s=6.0),)), "process")
    assert short.endswith(", 12 process s")
    assert not forecast_errors([(job, forecast)], scale_points(plan.runs[:2], {}))
    write_run(tmp_path, plan.runs[-1], 1740.8)
    records = {spec.name: RunRecords(tmp_path).believed(spec) for spec in plan.runs}
    points = scale_points(plan.runs, records)
    (error,) = forecast_errors([(job, forecast)], points)
    assert error.difference == pytest.approx(1740.8 / (forecast.series[0].samples_per_s or 0) - 1, abs=0.01)
    assert error.is_inside
    (missed,) = forecast_errors([(job, forecast.replace(series=(one,)))], points)
    assert error_lines([missed]) == [
        "forecast 2x1: 63,000 samples/s [58,000-66,000]; measured 1,738, 97.2 % less, below the interval, which about "
        "one in ten is outside of"
    ]


def test_from_one_scale_there_is_an_upper_bound_and_no_forecast(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path, repeats=1)
    without(tmp_path, "1x2")
    without(tmp_path, "2x1")
    one = first(made(plan, "stage2", tmp_path))
    assert (one.samples_per_s, one.samples_per_s_high, one.efficiency) == (None, None, None)
    assert one.samples_per_s_bound == pytest.approx(2 * RATES["1x1"], rel=0.01)
    ((job, forecast),) = planned_forecasts(tmp_path, plan)
    (line,) = forecast_lines(job, forecast, "GPU")
    assert line.startswith("stage2 1x2: at most 2,047 samples/s (upper bound: only 1x1 was measured), at least ")
    write_run(tmp_path, plan.runs[1], RATES["1x2"])
    records = {spec.name: RunRecords(tmp_path).believed(spec) for spec in plan.runs[:2]}
    (error,) = forecast_errors([(job, forecast)], scale_points(plan.runs, records))
    assert error_lines([error]) == [
        "forecast 1x2: at most 2,047 samples/s (upper bound: only 1x1 was measured); measured 1,840, 90 % of it"
    ]
    assert error.cells(False) == ("1x2", "at most 2,047", "upper bound", "1,840", "90\u00a0% of it", "", "1x1")


@pytest.mark.parametrize(
    ("below", "step_time_s", "batch", "wall_s"),
    [
        ([], 0.1, 64, None),
        ([(64, 1000, 110.0, 10.0, "script")], 0.2, 128, 210.0),  # after one scale, the steps are taken as equal
        ([(64, 1000, 110.0, 10.0, "script"), (128, 500, 65.0, 15.0, "script")], 0.1, 256, 40.0),  # it counts epochs
        ([(64, 1000, 110.0, 10.0, "script"), (128, 1000, 115.0, 15.0, "script")], 0.1, 256, 115.0),  # it counts steps
        ([(64, 1000, 110.0, 10.0, "script"), (128, 500, 65.0, 15.0, "max_steps")], 0.1, 256, 65.0),
        ([(64, 1000, 110.0, 10.0, "script"), (128, 500, 65.0, 15.0, "max_seconds")], 0.9, 256, 65.0),
        ([(64, 1000, 110.0, 10.0, "script"), (64, 1000, 115.0, 15.0, "script")], 0.05, 64, 65.0),  # strong scaling
    ],
)
def test_how_long_a_run_will_take(
    below: list[tuple[float, float, float, float, str]], step_time_s: float, batch: float, wall_s: float | None
) -> None:
    lengths = [
        RunLength(Scale(1, 1), wall_s=wall, startup_s=startup, steps=steps, step_time_s=0.1, batch=size, ended_by=ended)
        for size, steps, wall, startup, ended in below
    ]
    assert wall_s_at(lengths, step_time_s, batch) == (None if wall_s is None else pytest.approx(wall_s))


def test_hours_are_a_range_only_if_their_ends_differ() -> None:
    third = 0.0115 / 3
    assert hours(0.0115, "process", third * 3) == hours(0.0115, "process") == "0.0115 process h"
    assert hours(0.4, "GPU", 1.1) == "0.400 to 1.10 GPU h"
    assert hours(0.001, "GPU") == "4 GPU s"
