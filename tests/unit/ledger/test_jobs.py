"""The row of a job, from its own files and sacct's answer, and the table of all."""

from __future__ import annotations

import csv
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.common.process import Interrupted
from ddp_ladder.ledger import jobs
from ddp_ladder.ledger.entries import IDLE, WITNESS
from ddp_ladder.ledger.jobs import (
    Accounted,
    JobRow,
    accounted,
    accounting_file,
    ask_sacct,
    begun_at,
    job_files,
    ledger_of,
    starts_of,
    update,
)
from ddp_ladder.slurm import query
from ddp_ladder.slurm.jobs import JobState
from make_jobs import BEGUN_S, JOB, write_job
from make_records import make_plan_of, make_specs
from make_runs import edit, write_run
from slurm_captured import CAPTURED

NAME = "1x2-ddp-ladder-0123456789-0123456789"
PHASES = ("preflight_s", "startup_s", "training_s", "launcher_s", "end_s")
LATER_S = 40  # the second run starts so much later than the first
RUN_S = 60 * 128 / 1024 + 5  # 60 steps of 128 samples at 1024 samples/s

Known = dict[str, Accounted]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def sacct(monkeypatch: pytest.MonkeyPatch) -> Known:
    """What sacct knows, by job."""
    known: Known = {}

    def ask(job_ids: list[str]) -> Mapping[str, Accounted]:
        return {job_id: job for job_id, job in known.items() if job_id in job_ids}

    monkeypatch.setattr(jobs, "ask_sacct", ask)
    return known


def of_slurm(name: str = NAME, end_s: float = BEGUN_S + 105, **changes: Any) -> Accounted:
    """What sacct knows of the job. Slurm gave it all four GPUs of its node."""
    figures = {
        "source": "sacct", "state": "COMPLETED", "ended_at": jobs._utc(end_s), "queue_wait_s": 60.0,
        "elapsed_s": 110.0, "nodes": 1, "node_list": "node1", "gpus": 4,
    }  # fmt: skip
    return Accounted(name, end_s, {**figures, **changes})


def write_runs(results: Path) -> list[RunDirectory]:
    """Write two runs of the job, one after the other."""
    directories = [write_run(results, spec) for spec in make_specs(["1x2"], repeats=2)]
    for directory in directories:
        belongs_to(directory, JOB)
    last = directories[1]
    for file in (last.ended, *last.ranks.glob("*.json"), *last.nodes.glob("*.json")):
        edit(file, _later)
    return directories


def belongs_to(directory: RunDirectory, job: str) -> None:
    for file in directory.path.rglob("*.json"):
        edit(file, lambda data: data.get("job") and data["job"].update(id=job))


def _later(data: dict[str, Any]) -> None:
    times = ("started_at_s", "ended_at_s", "launched_at_s")
    data.update({key: data[key] + LATER_S for key in times if key in data})


def the_row(results: Path) -> JobRow:
    (row,) = update(results)
    assert sum(getattr(row, phase) for phase in PHASES) <= row.elapsed_s + 1e-9
    return row


def test_the_seconds_of_a_run_that_followed_its_batches_are_the_witness_s(results: Path, sacct: Known) -> None:
    write_runs(results)
    write_job(results)
    (_, file), *_ = job_files(results)
    spec = make_specs(["1x2"], repeats=1)[0]

    def seconds(owner: str) -> float:
        starts = starts_of(RunRecords(results), begun_at(results, file.scale), file, BEGUN_S + 100)
        return ledger_of(results, file, starts, (110.0, 4)).seconds(owner)

    idle_s = seconds(IDLE)
    run = write_run(results / "witness/default", spec)
    assert seconds(WITNESS) == 0  # of another job
    belongs_to(run, JOB)
    assert seconds(WITNESS) == pytest.approx(RUN_S)
    assert seconds(IDLE) == pytest.approx(idle_s - RUN_S)


def test_a_job_that_was_killed_has_a_row_as_soon_as_sacct_has_one(results: Path, sacct: Known) -> None:
    """It has written no end, and neither has the run that it was killed in."""
    _, second = write_runs(results)
    second.ended.unlink()
    write_job(results, ended_at_s=None)
    assert update(results) == ()
    sacct[JOB] = of_slurm(state="TIMEOUT")
    row = the_row(results)
    assert (row.state, row.elapsed_s, row.runs_measured) == ("TIMEOUT", 110, 1)


def test_a_late_database_completes_the_row_and_a_complete_row_stays(results: Path, sacct: Known) -> None:
    write_runs(results)
    write_job(results)
    assert the_row(results).source == "none"
    sacct[JOB] = of_slurm()
    row = the_row(results)
    assert (row.source, row.queue_wait_s) == ("sacct", 60)
    sacct[JOB] = of_slurm(queue_wait_s=999.0)
    shutil.rmtree(results / "runs")
    assert the_row(results) == row
    (line,) = csv.DictReader(accounting_file(results).read_text().splitlines())
    written = JobRow.model_validate_strings({key: text for key, text in line.items() if text})
    assert written.model_dump() == pytest.approx(row.model_dump())


def test_a_job_writes_its_file_at_its_begin_and_at_its_end(
    results: Path, sacct: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    job = make_plan_of(make_specs(["1x2"], repeats=2)).jobs[0]
    for name in ("local-a-1", "local-a-1.2"):
        with accounted(results, job, "local-a-1", "measure"):
            assert {path.stem: file.ended_at_s for path, file in job_files(results)}[name] is None
        assert None not in {file.ended_at_s for _, file in job_files(results)}
    with pytest.raises(KeyError), accounted(results, job, "local-a-3", "measure"):
        raise KeyError
    found = update(results)
    assert {row.job_id for row in found} == {"local-a-1", "local-a-1.2", "local-a-3"}
    assert {(row.source, row.gpus, row.runs_planned) for row in found} == {("none", 2, 2)}


def test_a_job_has_the_length_of_no_clock_and_the_next_number(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_plan_of(make_specs(["1x2"])).jobs[0]
    write_job(results)  # of an earlier version, without a number
    (results / "jobs/1x2/damaged.json").write_text("{")
    with suppress(Interrupted), accounted(results, job, "local-a-1", "production"):
        monkeypatch.setattr(jobs.time, "time", lambda: BEGUN_S - 7200)  # the clock is set back
        raise Interrupted(signal.SIGTERM)
    jobs.submitted(results, job, "9", "production")  # before the one that submits it begins its link
    jobs.submitted(results, job, "9", "production")
    with accounted(results, job, "8", "production"):
        pass
    files = {file.job_id: file for _, file in job_files(results)}
    first, second, waiting = (files[name] for name in ("local-a-1", "8", "9"))
    assert first.ended_at_s is not None
    assert 0 <= first.ended_at_s - first.begun_at_s < 3600
    assert (first.number, first.ended_by, second.number, waiting.has_begun) == (3, "SIGTERM", 4, False)
    with accounted(results, job, "9", "production"):
        pass
    last = {file.job_id: file for _, file in job_files(results)}["9"]
    assert (last.number, last.has_begun) == (5, True)


@pytest.mark.parametrize(
    ("state", "least_s", "most_s", "has_begun"),
    [
        (JobState("RUNNING", nodes="node1"), None, None, False),
        (JobState("PENDING"), None, None, False),
        (JobState("CANCELLED"), 0, 0, False),
        (JobState("TIMEOUT", nodes="node1", start="300 s ago"), 300, 5000, False),
        (JobState("CANCELLED", nodes="node1"), 5000, 5000, False),
        (JobState("GONE"), 5000, 5000, False),
        (JobState("GONE"), 5000, 5000, True),
        (JobState("NODE_FAIL", nodes="node1", start="300 s ago"), 300, 300, True),
    ],
)
def test_what_a_job_held_that_did_not_write_its_end(
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: JobState,
    least_s: int | None,
    most_s: int | None,
    has_begun: bool,
) -> None:
    if state.start:
        state = replace(state, start=time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 300)))
    monkeypatch.setattr(jobs, "ask", lambda job_ids: dict.fromkeys(job_ids, state))
    monkeypatch.setattr(jobs.shutil, "which", lambda name: name)
    write_job(results, "9", job_id="9", begun_at_s=time.time() - 9000, ended_at_s=None, has_begun=has_begun)
    jobs.settle(results, most_s=5000.0)
    files = [file for _, file in job_files(results)]
    if most_s == 0:
        assert files == []
        return
    (file,) = files
    assert file.has_held == (most_s is not None or has_begun)
    if least_s is not None:
        assert file.ended_at_s is not None
        assert least_s - 1 <= file.ended_at_s - file.begun_at_s <= most_s + 1


def test_a_job_that_is_part_of_an_allocation() -> None:
    named = [{"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": name} for name in ("interactive", NAME)]
    assert [*map(jobs._is_in_allocation, [*named, {"SLURM_JOB_ID": "1"}, {"SLURM_JOB_NAME": "x"}])] == [
        True, False, False, False,
    ]  # fmt: skip


SLURMS = "Welcome to the cluster\n" + (CAPTURED / "sacct_jobs.txt").read_text()
"""What a real sacct printed: a job that ended well, and two that were cancelled."""


def over(monkeypatch: pytest.MonkeyPatch, printed: str) -> dict[str, Accounted]:
    monkeypatch.setattr(query, "run_command", lambda argv, within_s: printed)
    return ask_sacct(["1", "2", "3"])


def test_the_output_of_sacct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    found = over(monkeypatch, SLURMS)
    assert found["1"].name.startswith("2x2")
    job = found["1"].figures
    assert (job["state"], job["node_list"]) == ("COMPLETED", "node[1-2]")
    assert (job["nodes"], job["gpus"], job["queue_wait_s"], job["elapsed_s"]) == (2, 4, 1, 12)
    cancelled = [found[k].figures for k in "23"]
    assert [(each["state"], each["elapsed_s"], each["node_list"]) for each in cancelled] == [
        ("CANCELLED", 0, "node1"),
        ("CANCELLED", 0, None),
    ]
