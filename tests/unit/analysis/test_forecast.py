"""Forecasts from real run directories: what they are made from, and when they are written again."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from ddp_ladder.analysis.prediction import (
    SeriesForecast,
    error_rows,
    forecast_line,
    make_forecast,
    planned_forecasts,
    run_s,
    write_forecast,
)
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.common.findings import remark
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.plan.plan import HourUnit, Plan, RunSpec
from ddp_ladder.records.record import Record, read_record, write_record
from make_records import make_plan_of, make_record, make_spec, make_specs
from make_runs import RATES, edit, write_ladder, write_run

GPU_HOURS = HourUnit("GPU", None)


def made(plan: Plan, stage: str, results: Path, is_open: bool = True) -> SeriesForecast | None:
    """Write the forecast of a stage and return that of its first series."""
    forecast = make_forecast(plan, stage, RunRecords(results), (), is_open)
    write_forecast(results, stage, forecast)
    return forecast and forecast.series[0]


def without(results: Path, scale: str) -> None:
    for path in (results / "runs").glob(f"*/*/{scale}"):
        shutil.rmtree(path)


def points_of(results: Path, specs: Sequence[RunSpec]) -> tuple[ScalePoint, ...]:
    return scale_points(specs, {spec.name: RunRecords(results).believed(spec) for spec in specs})


def test_the_figures_fit_together(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path)
    without(tmp_path, "2x1")
    one = made(plan, "stage3", tmp_path)
    assert (one.scale, one.gpus, one.runs, one.baseline, one.largest_measured) == ("2x1", 2, 2, "1x1", "1x2")
    assert one.samples_per_s_low < RATES["2x1"] < one.samples_per_s_high
    assert one.efficiency == pytest.approx(one.samples_per_s / 2 / RATES["1x1"], rel=0.01)


def test_it_is_written_again_until_a_run_has_begun_and_never_after(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path, repeats=1)
    without(tmp_path, "2x1")
    before = made(plan, "stage3", tmp_path)
    write_run(tmp_path, plan.runs[1], 1500.0)
    slower = made(plan, "stage3", tmp_path)
    assert slower.samples_per_s < 0.9 * before.samples_per_s
    write_run(tmp_path, plan.runs[2], 1740.8)
    write_run(tmp_path, plan.runs[1], 1843.2)
    assert made(plan, "stage3", tmp_path) == slower
    assert made(plan, "stage3", tmp_path, is_open=False) == slower


def test_it_is_read_from_its_file_with_what_an_earlier_version_wrote_and_says_nothing_of_other_settings(
    tmp_path: Path,
) -> None:
    plan = write_ladder(tmp_path, repeats=1)
    without(tmp_path, "2x1")
    written = made(plan, "stage3", tmp_path)
    edit(tmp_path / "forecast/stage3.json", lambda data: data["series"][0].update(peak_memory_bytes=None))
    ((_, one),) = planned_forecasts(tmp_path, plan)
    assert one == written
    changed = make_plan_of(make_specs(["1x1", "1x2", "2x1"], repeats=1, batch_per_gpu=16))
    assert not [*planned_forecasts(tmp_path, changed)]
    assert made(changed, "stage3", tmp_path) is None


def test_words_before_and_after(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path, repeats=1)
    without(tmp_path, "2x1")
    made(plan, "stage3", tmp_path)
    ((job, forecast),) = planned_forecasts(tmp_path, plan)
    one = forecast.replace(samples_per_s=63000.4, samples_per_s_low=58000.0, samples_per_s_high=66000.0)
    one = one.replace(efficiency=0.853, run_s=720.0)
    rate = "63,000 samples/s [58,000-66,000]"
    assert forecast_line(job, one, GPU_HOURS) == f"stage3 2x1: forecast {rate}, 85 % efficiency, 0.400 GPU h"
    assert not error_rows([(job, forecast)], scale_points(plan.runs[:2], {}))
    write_run(tmp_path, plan.runs[-1], 1740.8)
    points = points_of(tmp_path, plan.runs)
    ((_, _, measured),) = error_rows([(job, forecast)], points)
    assert measured.endswith(", inside the interval")
    assert error_rows([(job, one)], points) == [("2x1", rate, "measured 1,738, 97.2 % less, outside the interval")]


def test_a_doubt_of_a_measured_scale_is_told_with_the_forecast_and_its_bound(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path, repeats=1)
    without(tmp_path, "2x1")
    doubt = remark("doubtful count", "the number of samples is doubtful", "set samples_per_step")

    def line(stage: str) -> str:
        forecast = make_forecast(plan, stage, RunRecords(tmp_path), (), True)
        write_forecast(tmp_path, stage, forecast)
        ((job, one),) = [each for each in planned_forecasts(tmp_path, plan) if each[0].stage == stage]
        return forecast_line(job, one, GPU_HOURS)

    assert "doubt" not in line("stage3")
    file = next(tmp_path.glob("runs/default/weak/1x1/*/record.json"))
    write_record(file, read_record(file).replace(remarks=(doubt,)))
    assert line("stage3").endswith("; in doubt, as at 1x1 the number of samples is doubtful")
    without(tmp_path, "1x2")
    assert line("stage2").endswith("; in doubt, as at 1x1 the number of samples is doubtful")


def test_from_one_scale_there_is_an_upper_bound_and_no_forecast(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path, repeats=1)
    without(tmp_path, "1x2")
    without(tmp_path, "2x1")
    one = made(plan, "stage2", tmp_path)
    assert (one.samples_per_s, one.samples_per_s_high, one.efficiency) == (None, None, None)
    assert one.samples_per_s_bound == pytest.approx(2 * RATES["1x1"], rel=0.01)
    ((job, forecast),) = planned_forecasts(tmp_path, plan)
    line = forecast_line(job, forecast, GPU_HOURS)
    assert line.startswith("stage2 1x2: at most 2,047 samples/s (upper bound: only 1x1 was measured), at least ")
    write_run(tmp_path, plan.runs[1], RATES["1x2"])
    bound = "at most 2,047 samples/s (upper bound: only 1x1 was measured)"
    rows = error_rows([(job, forecast)], points_of(tmp_path, plan.runs[:2]))
    assert rows == [("1x2", bound, "measured 1,840, 90 % of it")]


Side = tuple[int, float, float]  # steps, wall time and start-up of a run with steps of 0.1 s


@pytest.mark.parametrize(
    ("first", "near", "step_s", "growth", "ended_by", "expected_s"),
    [
        (None, (1000, 110.0, 10.0), 0.2, 2, "script", 210.0),  # after one scale, the steps are taken as equal
        ((1000, 110.0, 10.0), (500, 65.0, 15.0), 0.1, 2, "script", 40.0),  # it counts epochs
        ((1000, 110.0, 10.0), (1000, 115.0, 15.0), 0.1, 2, "script", 115.0),  # it counts steps
        ((1000, 110.0, 10.0), (500, 65.0, 15.0), 0.9, 2, "max_seconds", 65.0),
        ((1000, 110.0, 10.0), (1000, 115.0, 15.0), 0.05, 1, "script", 65.0),  # strong scaling
    ],
)
def test_how_long_a_run_will_take(
    first: Side | None, near: Side, step_s: float, growth: float, ended_by: str, expected_s: float
) -> None:
    def records(side: Side) -> list[Record]:
        steps, wall_s, startup_s = side
        record = make_record(make_spec("1x1"))
        ranks = tuple(rank.replace(steps=steps, ended_by=ended_by) for rank in record.ranks)
        timing = record.timing.replace(wall_s=wall_s, startup_s=startup_s, step_time_s=0.1)
        return [record.replace(ranks=ranks, timing=timing)]

    assert run_s(records(near), records(first or near), step_s, growth) == pytest.approx(expected_s)
