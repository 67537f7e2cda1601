"""Which failed jobs get a box at the end of a start, beside the closed gates, and what is in it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from ddp_ladder.climb.start import MOST_LINES, FailedJob, Stop
from ddp_ladder.common.files import write_json
from ddp_ladder.slurm.jobs import NOT_SUBMITTED, JobEnd, write_job_end

BEGAN_S = 1_000_000.0
CLOSED = FailedJob("gate", "logs/gate_stage1.log", 1)
CANCELLED = FailedJob("measure_stage1", "logs/measure_1x1.log", None, "job 12 ended CANCELLED. Next: x.")


@pytest.fixture
def stop(tmp_path: Path) -> Stop:
    return Stop((), tmp_path, BEGAN_S, ".snakemake/log/x.log", None, others_are_shown=False)


def close_gate(results: Path, at_s: float) -> None:
    file = results / "gates/stage1.closed.json"
    write_json(file, {})
    os.utime(file, (at_s, at_s))


def boxes(stop: Stop) -> list[str]:
    """Their texts, each on one line."""
    return [" ".join(word for word in box.split() if word != "|") for box in stop.boxes()]


def test_a_gate_that_was_closed_has_its_own_box(stop: Stop) -> None:
    close_gate(stop.results, BEGAN_S + 9)
    assert boxes(replace(stop, jobs=[CLOSED])) == []
    (box,) = boxes(replace(stop, jobs=[replace(CLOSED, exit_code=137)]))
    assert "the job gate_stage1 failed: exit code 137 (SIGKILL)" in box
    assert "because memory ran out" in box


def test_a_gate_closed_by_an_earlier_start_tells_nothing_of_this_one(stop: Stop) -> None:
    close_gate(stop.results, BEGAN_S - 9)
    (box,) = boxes(replace(stop, jobs=[CLOSED]))
    assert "the job gate_stage1 failed: exit code 1 printed its log is empty" in box
    assert "Snakemake's: .snakemake/log/x.log" in box


def test_a_slurm_job_is_reported_by_the_gate_or_in_the_executors_words(stop: Stop) -> None:
    stop = replace(stop, jobs=[CANCELLED])
    (box,) = boxes(stop)
    assert "the job measure_1x1 failed found job 12 ended CANCELLED. Next: x. log logs/measure_1x1.log" in box
    write_job_end(stop.results, JobEnd("", "stage1", "1x1", NOT_SUBMITTED, ""))
    close_gate(stop.results, BEGAN_S + 9)
    assert boxes(stop) == []


@pytest.mark.parametrize("rule", ["doctor", "eject", "report"])
def test_what_has_said_it_in_the_terminal_gets_no_box(stop: Stop, rule: str) -> None:
    job = FailedJob(rule, f"logs/{rule}.log", 1)
    assert boxes(replace(stop, jobs=[job])) == []
    assert len(boxes(replace(stop, jobs=[replace(job, exit_code=137)]))) == 1


def test_the_preparation_is_reported_with_its_last_lines(stop: Stop) -> None:
    log = stop.results / "prepare_data.log"
    log.write_text("".join(f"line {number}\n" for number in range(20)))
    (box,) = boxes(replace(stop, jobs=[FailedJob("prepare_data", str(log), 3)]))
    assert "workload.prepare failed: exit code 3" in box
    assert f"line {20 - MOST_LINES} " in box
    assert "line 19 " in box
    assert f"line {19 - MOST_LINES} " not in box


def test_every_failed_job_has_a_box(stop: Stop) -> None:
    plan, data = FailedJob("plan", "logs/plan.log", 2), FailedJob("prepare_data", "", 1)
    assert len(boxes(replace(stop, jobs=[plan, data]))) == 2


def test_an_end_by_a_signal(stop: Stop) -> None:
    jobs = [FailedJob("measure_stage1", "logs/measure_1x1.log", 130), FailedJob("prepare_data", "", 1)]
    first, last = boxes(replace(stop, jobs=jobs, ended_by="SIGINT"))
    assert "workload.prepare failed" in first
    assert "verdict ended by Ctrl-C (SIGINT) log .snakemake/log/x.log next start snakemake again" in last
    (last,) = boxes(replace(stop, ended_by="SIGTERM"))
    assert "ended by a signal (SIGTERM)" in last


def test_an_error_that_is_no_jobs(stop: Stop) -> None:
    (box,) = boxes(replace(stop, others_are_shown=True))
    assert "Snakemake stopped at the error above" in box
    (box,) = boxes(replace(stop, others_are_shown=True, log=""))
    assert "log none was written" in box
