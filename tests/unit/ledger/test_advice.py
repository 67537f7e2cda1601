"""Time limits that are too long or nearly used up, and the lines for people."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddp_ladder.ledger.jobs import JobRow, advice, specs_digest, terminal_lines
from ddp_ladder.plan.plan import Plan, ScaleJob
from make_jobs import make_row
from make_records import make_plan_of, make_specs


def plan(runtime_min: int = 20, scales: Sequence[str] = ("1x1", "1x4", "2x4")) -> Plan:
    usual = make_plan_of(make_specs(scales, repeats=1, device="cuda"))
    return replace(usual, jobs=tuple(replace(job, runtime_min=runtime_min) for job in usual.jobs))


def rows(of: Plan, **changes: Any) -> list[JobRow]:
    return [_row(job, **changes) for job in of.jobs]


def _row(job: ScaleJob, **changes: Any) -> JobRow:
    gpus = job.scale.world_size
    hours = {"gpu_hours_held": 0.2 * gpus, "gpu_hours_training": 0.1 * gpus}
    usual = {"stage": job.stage, "scale": str(job.scale), "specs": specs_digest(job), **hours}
    return make_row(**{**usual, **changes})


def told(of: Plan, found: Sequence[JobRow]) -> dict[str, int]:
    """The keys to change, with their values."""
    return {key: int(value) for line in advice(of, found) for key, value in re.findall(r"(\S+): (\d+) in ", line)}


def test_advice_that_was_followed_is_not_given_again() -> None:
    before = plan()
    found = rows(before, elapsed_s=1100.0)
    values = told(before, found)
    assert values == {f"stages.stage{k}.runtime": 30 for k in (1, 2, 3)}
    assert told(plan(values["stages.stage1.runtime"]), found) == {}


def test_a_time_limit_that_is_far_too_long() -> None:
    long = plan(runtime_min=240)
    assert told(long, rows(long)) == {f"stages.stage{k}.runtime": 20 for k in (1, 2, 3)}
    assert told(plan(runtime_min=20), rows(long)) == {}
    where = "stages.stage1.runtime: 20 in config.yaml"
    assert advice(long, rows(long))[0] == f"time: 1x1 asked 240 min, took 12 min 00 s: {where}"


def test_a_job_that_kept_runs_does_not_show_how_long_all_take() -> None:
    long = plan(runtime_min=240)
    assert told(long, rows(long, runs_planned=2)) == {}


def test_the_lines_in_the_terminal() -> None:
    long = plan(runtime_min=240)
    lines = terminal_lines(long, rows(long), Path("results"))
    assert all(len(line) <= 100 for line in lines)
    text = " ".join(line.strip() for line in lines)
    assert text.startswith(
        "used     3 jobs held 2.60 GPU h, of which 1.30 GPU h in training; results/accounting.csv request"
    )
    assert text.endswith("stages.stage3.runtime: 20 in config.yaml")
    assert terminal_lines(long, [], Path("results")) == []
    on_cpus = make_plan_of(make_specs(("1x4",), repeats=1))
    found = rows(on_cpus, gpu_hours_training=0.001)
    assert "held 0.800 process h, of which 0.00100" in terminal_lines(on_cpus, found, Path("results"))[0]
