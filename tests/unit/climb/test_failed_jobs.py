"""Which boxes there are at the end of a start that failed, beside those of closed gates, and what is in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.climb.start import MOST_LINES, FailedJob, boxes
from ddp_ladder.slurm.jobs import NOT_SUBMITTED, JobEnd, write_job_end

LOG = ".snakemake/log/x.log"


def texts(results: Path, *jobs: FailedJob, log: str = LOG, ended_by: str | None = None) -> list[str]:
    """The boxes, each on one line."""
    return [" ".join(word for word in box.split() if word != "|") for box in boxes(jobs, results, log, ended_by)]


@pytest.mark.parametrize("rule", ["doctor", "gate", "measure_stage1"])
def test_what_has_said_it_in_the_terminal_gets_no_box_unless_it_was_killed(tmp_path: Path, rule: str) -> None:
    assert texts(tmp_path, FailedJob(rule, f"logs/{rule}.log", 1)) == []
    (box,) = texts(tmp_path, FailedJob(rule, f"logs/{rule}.log", 137))
    assert f"the job {rule} failed: exit code 137 (SIGKILL) printed its log is empty" in box
    assert "because memory ran out" in box
    assert f"Snakemake's: {LOG}" in box


def test_a_slurm_job_is_reported_by_the_gate_or_in_the_executors_words(tmp_path: Path) -> None:
    job = FailedJob("measure_stage1", "logs/measure_1x1.log", None, "job 12 ended CANCELLED. Next: x.")
    (box,) = texts(tmp_path, job)
    assert "the job measure_1x1 failed found job 12 ended CANCELLED. Next: x. log logs/measure_1x1.log" in box
    write_job_end(tmp_path, JobEnd("", "stage1", "1x1", NOT_SUBMITTED, ""))
    assert texts(tmp_path, job) == []


def test_every_job_that_has_not_said_it_has_a_box_with_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "prepare_data.log"
    log.write_text("".join(f"line {number}\n" for number in range(20)))
    box, other = texts(tmp_path, FailedJob("prepare_data", str(log), 1), FailedJob("plan", "", 2), log="")
    assert "workload.prepare failed: exit code 1" in box
    assert f"line {20 - MOST_LINES} " in box
    assert "line 19 " in box
    assert f"line {19 - MOST_LINES} " not in box
    assert "Snakemake's: none was written" in other


def test_an_end_by_a_signal_is_one_box(tmp_path: Path) -> None:
    (box,) = texts(tmp_path, FailedJob("prepare_data", "", 1), ended_by="SIGINT")
    assert f"verdict ended by Ctrl-C (SIGINT) log {LOG} next start snakemake again" in box
    (box,) = texts(tmp_path, ended_by="SIGTERM")
    assert "ended by a signal (SIGTERM)" in box
