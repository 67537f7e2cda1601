"""What a gate writes and says of the stages above it, and runtimes that are too short."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from ddp_ladder.analysis.prediction import forecast_file
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.climb.ladder import after_gate, lines_before, runs_to_do, short_runtimes
from ddp_ladder.gates.gate import judge
from ddp_ladder.plan.plan import Plan, WitnessLimits
from make_runs import write_ladder, write_run


def ladder(results: Path, runtime_min: int = 20, **changes: object) -> Plan:
    """A ladder whose stage 3 has not been measured."""
    plan = write_ladder(results, **changes)  # type: ignore[arg-type]
    shutil.rmtree(results / "runs/default/weak/2x1")
    return replace(plan, jobs=tuple(replace(job, runtime_min=runtime_min) for job in plan.jobs))


def said(plan: Plan, stage: str, results: Path) -> list[str]:
    return [*after_gate(plan, judge(plan, stage, results), RunRecords(results))]


def doubts(plan: Plan, results: Path) -> list[str]:
    runs = RunRecords(results)
    return [str(problem) for problem in short_runtimes(plan, plan.stages, runs_to_do(plan, runs), runs, "config.yaml")]


def test_an_open_gate_writes_the_forecast_and_says_it_before_the_stage_begins(tmp_path: Path) -> None:
    plan = ladder(tmp_path)
    (line,) = said(plan, "stage2", tmp_path)
    assert line.startswith("stage3 2x1: forecast 1,")
    assert "% efficiency" in line
    assert line.endswith(" process h")
    assert [*lines_before(plan, ["stage3"], runs_to_do(plan, RunRecords(tmp_path)), tmp_path)] == [line]
    assert not [*lines_before(plan, ["stage2"], runs_to_do(plan, RunRecords(tmp_path)), tmp_path)]


def test_what_is_measured_is_not_announced_again(tmp_path: Path) -> None:
    plan = ladder(tmp_path)
    said(plan, "stage2", tmp_path)
    for spec in plan.job(plan.jobs[-1].scale).runs:
        write_run(tmp_path, spec, 1740.8)
    assert said(plan, "stage2", tmp_path) == []
    assert forecast_file(tmp_path, "stage3").exists()


def test_a_runtime_that_is_too_short_is_named_with_a_value(tmp_path: Path) -> None:
    plan = ladder(tmp_path, rates={"1x1": 9.2, "1x2": 17.2, "2x1": 16.0})  # runs of about 8 min
    assert doubts(plan, tmp_path) == []  # without a forecast nothing is known
    assert len(said(plan, "stage2", tmp_path)) == 1  # 16 of 20 min
    short = replace(plan, jobs=tuple(replace(job, runtime_min=15) for job in plan.jobs))
    assert said(short, "stage2", tmp_path)[1].startswith("warning: config.yaml: stages.stage3.runtime: too short")
    (text,) = doubts(short, tmp_path)
    assert "too short for 2x1: 2 runs will take about 1" in text
    assert "set stages.stage3.runtime: 25, if the partition allows it; otherwise fewer steps" in text


def test_runs_of_the_scale_itself_count_more_than_the_forecast(tmp_path: Path) -> None:
    plan = ladder(tmp_path, runtime_min=10)
    said(plan, "stage2", tmp_path)
    assert doubts(plan, tmp_path) == []
    write_run(tmp_path, plan.jobs[-1].runs[0], 128 * 60 / 1200.0)  # 20 min
    (text,) = doubts(plan, tmp_path)
    assert "1 run will take about 20 min" in text
    assert "stages.stage3.runtime: 35" in text


def test_the_run_that_follows_its_batches_takes_its_time_too(tmp_path: Path) -> None:
    plan = ladder(tmp_path, runtime_min=10, rates={"1x1": 9.2, "1x2": 17.2, "2x1": 16.0})  # runs of about 8 min
    shutil.rmtree(tmp_path / "runs/default/weak/1x1/r2")
    assert doubts(plan, tmp_path) == []
    first, *others = plan.jobs
    followed = replace(first, witness=WitnessLimits(steps=200, seconds=120))
    (text,) = doubts(replace(plan, jobs=(followed, *others)), tmp_path)
    assert "too short for 1x1: 1 run will take about 9" in text
