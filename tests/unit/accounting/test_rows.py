"""The row of a job, from its own files and Slurm's answers, and the table of all."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.accounting import job_file, update
from ddp_ladder.accounting.job_file import JobFile, Sampler, accounted
from ddp_ladder.accounting.row import JobRow
from ddp_ladder.accounting.sampled import sums_of
from ddp_ladder.accounting.slurm_job import SlurmJob, StepUse
from ddp_ladder.accounting.table import COLUMNS, accounting_file, merged, read_rows, text_of, write_rows
from ddp_ladder.common.files import RunDirectory, write_json
from ddp_ladder.records.assemble import assemble
from ddp_ladder.slurm.job_end import JobEnd, write_job_end
from ddp_ladder.usage.models import Energy
from make_preflight import write_preflight
from make_records import make_plan_of, make_specs
from make_runs import STARTED_AT_S, STARTUP_S, edit, reassemble, write_run
from make_sampled_runs import write_sampled_run

JOB = "41"
NAME = "1x2-ddp-ladder-0123456789-0123456789"
PHASES = ("preflight_s", "startup_s", "training_s", "run_other_s", "idle_s")
BEGUN_S = STARTED_AT_S - 10
LATER_S = 40  # the second run starts so much later than the first
RUN_S = 60 * 128 / 1024 + 5  # 60 steps of 128 samples at 1024 samples/s
TRAINING_S = RUN_S - 0.4 - STARTUP_S
MB = 1024**2

Known = dict[str, dict[str, SlurmJob]]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Known:
    """What sacct and scontrol know, by job."""
    known: Known = {"sacct": {}, "scontrol": {}}

    def accounted_jobs(job_ids: list[str], wait_s: float) -> Mapping[str, SlurmJob]:
        assert job_ids, "Slurm is asked about nothing"
        return {job_id: job for job_id, job in known["sacct"].items() if job_id in job_ids}

    monkeypatch.setattr(update, "accounted_jobs", accounted_jobs)
    monkeypatch.setattr(update, "controlled_job", lambda job_id: known["scontrol"].get(job_id))
    return known


def write_job(results: Path, name: str = JOB, **changes: Any) -> None:
    """Write the file of a job of two GPUs on one node."""
    usual: dict[str, Any] = {
        "schema_version": 1,
        "kind": "measure",
        "stage": "stage2",
        "scale": "1x2",
        "in_allocation": False,
        "job_id": JOB,
        "nodes": 1,
        "gpus": 2,
        "cpus_per_node": 8,
        "memory_mb_per_node": 1000,
        "runtime_min": 20,
        "runs_planned": 2,
        "specs": "0123456789",
        "begun_at_s": BEGUN_S,
        "ended_at_s": BEGUN_S + 100,
    }
    file = JobFile(**{**usual, **changes})
    write_json(results / "jobs" / file.scale / f"{name}.json", file.model_dump())


def step(name: str, tasks: int, memory_mb: int) -> StepUse:
    return StepUse(step=name, tasks=tasks, max_rss_bytes=memory_mb * MB)


def accounted_job(**changes: Any) -> SlurmJob:
    """What sacct knows of the job. Slurm gave it all four GPUs of its node."""
    usual: dict[str, Any] = {
        "source": "sacct",
        "job_id": JOB,
        "name": NAME,
        "state": "COMPLETED",
        "exit_code": "0:0",
        "submit_s": BEGUN_S - 65,
        "start_s": BEGUN_S - 5,
        "end_s": BEGUN_S + 105,
        "limit_s": 1200.0,
        "nodes": 1,
        "node_list": "node1",
        "cpus": 8,
        "gpus": 4,
        "memory_bytes": 1000 * MB,
        "cpu_s": 220.0,
        "steps": (step("batch", 1, 100), step("0", 1, 300)),
    }
    return SlurmJob(**{**usual, **changes})


def controlled_job(**changes: Any) -> SlurmJob:
    return accounted_job(**{"source": "scontrol", "steps": (), "cpu_s": None, **changes})


def write_runs(results: Path) -> list[RunDirectory]:
    """Write two runs of the job, one after the other."""
    directories = [write_run(results, spec) for spec in make_specs(["1x2"], repeats=2)]
    for directory in directories:
        for file in directory.path.rglob("*.json"):
            edit(file, lambda data: data.get("job") and data["job"].update(id=JOB))
    last = directories[1]
    for file in (last.ended, *last.ranks.glob("*.json"), *last.nodes.glob("*.json")):
        edit(file, _later)
    return directories


def _later(data: dict[str, Any]) -> None:
    times = ("started_at_s", "ended_at_s", "launched_at_s")
    data.update({key: data[key] + LATER_S for key in times if key in data})


def the_row(results: Path) -> JobRow:
    (row,) = update.update(results)
    assert sum(getattr(row, phase) for phase in PHASES) == pytest.approx(row.elapsed_s)
    return row


def test_a_job_that_sacct_knows(results: Path, slurm: Known) -> None:
    write_runs(results)
    write_job(results)
    slurm["sacct"][JOB] = accounted_job()
    row = the_row(results)
    assert (row.source, row.queue_wait_s, row.elapsed_s) == ("sacct", 60, 110)
    assert row.startup_s == pytest.approx(2 * (STARTUP_S + 0.2))
    assert row.training_s == pytest.approx(2 * TRAINING_S)
    assert row.run_other_s == pytest.approx(2 * 0.2)
    assert (row.runs_planned, row.runs_measured, row.runs_ok) == (2, 2, 2)
    assert row.gpu_hours_asked == pytest.approx(20 / 60 * 4)
    assert row.gpu_hours_held == pytest.approx(110 / 3600 * 4)
    assert row.gpu_hours_training == pytest.approx(row.training_s / 3600 * 2)
    assert (row.cpu_source, row.cpu_efficiency) == ("sacct", pytest.approx(220 / (110 * 8)))
    assert (row.memory_asked_mb_per_node, row.memory_used_mb_per_node, row.memory_source) == (1000, 400, "sacct")
    assert row.samples == 2 * 60 * 128
    assert row.energy_nvml_j is None


def test_runs_that_were_kept_from_an_earlier_job_do_not_count(results: Path, slurm: Known) -> None:
    first, _ = write_runs(results)
    edit(first.run, lambda data: data["job"].update(id="40"))
    write_job(results)
    slurm["sacct"][JOB] = accounted_job()
    row = the_row(results)
    assert (row.runs_measured, row.runs_planned) == (1, 2)
    assert row.training_s == pytest.approx(TRAINING_S)


def test_repeated_attempts_count_in_the_job_that_made_them(results: Path, slurm: Known) -> None:
    _, second = write_runs(results)
    aside = second.attempts / "1"
    aside.mkdir(parents=True)
    for name in ("run.json", "ended.json", "ranks", "nodes", "train.log"):
        (second.path / name).rename(aside / name)
    write_job(results)
    slurm["sacct"][JOB] = accounted_job()
    assert the_row(results).training_s == pytest.approx(2 * TRAINING_S)


@pytest.mark.parametrize(("job_id", "preflight_s"), [(JOB, 7), ("40", 0)])
def test_the_preflight_of_this_job_counts(results: Path, slurm: Known, job_id: str, preflight_s: float) -> None:
    job = make_plan_of(make_specs(["1x2"], repeats=1)).jobs[0]
    write_preflight(results, job)
    times = {"started_at_s": BEGUN_S + 1, "ended_at_s": BEGUN_S + 8}
    edit(results / "preflight/1x2/ended.json", lambda data: (data["job"].update(id=job_id), data.update(times)))
    write_job(results)
    slurm["sacct"][JOB] = accounted_job()
    assert the_row(results).preflight_s == preflight_s


def test_a_job_that_was_killed_has_a_row(results: Path, slurm: Known) -> None:
    """It has written no end, and neither has the run that it was killed in."""
    _, second = write_runs(results)
    second.ended.unlink()
    os.utime(second.run, (BEGUN_S + 60, BEGUN_S + 60))
    write_job(results, ended_at_s=None)
    assert update.update(results) == ()
    slurm["scontrol"][JOB] = controlled_job(state="TIMEOUT")
    row = the_row(results)
    assert (row.state, row.elapsed_s, row.runs_measured) == ("TIMEOUT", 110, 1)
    assert row.run_other_s == pytest.approx(0.2 + 45)


def test_a_job_that_never_started_has_a_row(results: Path, slurm: Known) -> None:
    write_job_end(results, JobEnd("7", "stage3", "2x4", "CANCELLED", "its.log"))
    never = {"start_s": BEGUN_S, "end_s": BEGUN_S, "node_list": "", "gpus": None}
    slurm["scontrol"]["7"] = controlled_job(job_id="7", name=NAME.replace("1x2", "2x4"), state="CANCELLED", **never)
    row = the_row(results)
    assert (row.job_id, row.scale, row.state, row.elapsed_s, row.gpu_hours_held) == ("7", "2x4", "CANCELLED", 0, 0)
    assert row.started_at is None


def test_without_slurmdbd_the_memory_and_the_cpu_time_are_those_of_sstat(results: Path, slurm: Known) -> None:
    steps = (step("batch", 1, 100), step("0", 2, 120).replace(cpu_s=2.0), step("1", 2, 150).replace(cpu_s=4.0))
    write_job(results, steps=steps)
    slurm["scontrol"][JOB] = controlled_job()
    row = the_row(results)
    assert (row.source, row.memory_source, row.memory_used_mb_per_node) == ("scontrol", "sstat", 400)
    assert (row.cpu_source, row.cpu_s, row.cpu_efficiency) == ("sstat", 6, pytest.approx(6 / (110 * 8)))


def test_a_late_database_completes_the_row_and_a_complete_row_stays(
    results: Path, slurm: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_runs(results)
    write_job(results)
    slurm["scontrol"][JOB] = controlled_job()
    assert the_row(results).memory_used_mb_per_node is None
    slurm["sacct"][JOB] = accounted_job()
    row = the_row(results)
    assert (row.source, row.memory_used_mb_per_node) == ("sacct", 400)
    monkeypatch.setattr(update, "accounted_jobs", lambda *_: pytest.fail("a complete row needs no question"))
    the_row(results)
    shutil.rmtree(results / "runs")
    shutil.rmtree(results / "jobs")
    assert the_row(results).training_s == pytest.approx(row.training_s, rel=1e-9)


def test_a_row_of_a_job_that_has_just_ended_is_completed_with_what_its_steps_used(
    results: Path, slurm: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_runs(results)
    write_job(results)
    slurm["sacct"][JOB] = accounted_job(steps=(step("batch", 1, 100),))
    monkeypatch.setattr(time, "time", lambda: BEGUN_S + 106)
    assert the_row(results).memory_used_mb_per_node is None
    slurm["sacct"][JOB] = accounted_job()
    assert the_row(results).memory_used_mb_per_node == 400
    slurm["sacct"][JOB] = accounted_job(steps=(step("0", 1, 999),))
    assert the_row(results).memory_used_mb_per_node == 400


@pytest.mark.parametrize(
    "another",
    [{"name": "vasp"}, {"name": NAME.replace("1x2", "1x4")}, {"start_s": BEGUN_S + 3600, "end_s": BEGUN_S + 3700}],
)
def test_the_same_id_on_another_cluster_is_another_job(results: Path, slurm: Known, another: dict[str, Any]) -> None:
    """The results may have been copied there."""
    write_job(results)
    slurm["sacct"][JOB] = accounted_job(**another)
    assert the_row(results).source == "none"
    slurm["sacct"][JOB] = accounted_job()
    assert the_row(results).source == "sacct"


def test_two_starts_in_one_allocation(results: Path, slurm: Known) -> None:
    write_runs(results)
    write_job(results, in_allocation=True, ended_at_s=BEGUN_S + 30)
    write_job(results, f"{JOB}.2", in_allocation=True, begun_at_s=BEGUN_S + 40)
    first, second = update.update(results)
    assert [row.job_id for row in (first, second)] == [JOB, f"{JOB}.2"]
    assert [(row.source, row.state, row.runs_measured) for row in (first, second)] == [("none", "ENDED", 1)] * 2
    assert (first.gpus, first.elapsed_s, first.limit_s) == (2, 30, 1200)


def test_the_file_is_read_as_it_was_written(results: Path, slurm: Known) -> None:
    write_runs(results)
    write_job(results)
    slurm["sacct"][JOB] = accounted_job()
    row, (known,) = the_row(results), read_rows(results)
    assert known.model_dump() == pytest.approx(row.model_dump())
    assert accounting_file(results).read_text() == text_of([known])
    assert update.update(results) == (known,)


def test_a_row_of_a_better_source_replaces_one(results: Path, slurm: Known) -> None:
    write_job(results)
    slurm["sacct"][JOB] = accounted_job()
    row = the_row(results)
    lesser = row.replace(source="scontrol", state="TIMEOUT")
    assert merged([lesser], [row]) == merged([row], [lesser]) == (row,)
    assert len(merged([row], [row.replace(job_id="42"), row.replace(scale="2x1")])) == 3


def test_a_file_that_cannot_be_read_is_a_warning_and_is_kept(results: Path, slurm: Known) -> None:
    write_job(results)
    write_rows(results, ())
    file = accounting_file(results)
    text = file.read_text() + ",".join("x" for _ in COLUMNS) + "\n"
    file.write_text(text)
    rows, (warning,) = update.update_or_warn(results)
    assert rows == ()
    assert warning.startswith(f"{file}, line 2: ")
    assert file.read_text() == text
    file.write_text("a,b\n")
    assert "this version has no column a, b" in update.read_or_warn(results)[1][0]


def sampled_run(results: Path, **values: Any) -> RunDirectory:
    """Write a run of the job on two GPUs of 340 W, which are busy for 97 % of its 60 s of steps, with 5 cores."""
    (spec,) = make_specs(["1x2"], repeats=1, device="cuda")
    run = write_sampled_run(results, spec, gpu_count=2, **values)
    for file in run.path.rglob("*.json"):
        edit(file, lambda data: data.get("job") and data["job"].update(id=JOB))
    for rank in range(2):
        edit(run.ranks / f"rank{rank}.json", lambda end, rank=rank: end["device"].update(id=str(rank)))
    reassemble(run)
    return run


def test_energy_by_source_and_busy_time_of_the_monitors_samples(results: Path, slurm: Known) -> None:
    run = sampled_run(results)
    write_job(results)
    steps = (step("batch", 1, 100), step("1", 1, 200).replace(energy_j=90_000.0))
    slurm["sacct"][JOB] = accounted_job(steps=steps, cpu_s=None)
    row, usage = the_row(results), assemble(run).usage
    assert usage is not None
    assert usage.gpu_energy_measured_j is not None
    assert (row.energy_nvml_j, row.energy_rapl_j, row.energy_sacct_j) == (2 * 64 * 340, None, 90_000)
    assert row.samples == 60 * 128
    # The first ten steps are warm-up.
    assert row.joules_per_sample_nvml == pytest.approx(usage.gpu_energy_measured_j / (50 * 128))
    assert row.joules_per_sample_sacct == pytest.approx(90_000 / row.samples)
    assert row.kwh_per_run_nvml == pytest.approx(2 * 64 * 340 / 3.6e6)
    assert row.gpu_hours_busy == pytest.approx(0.97 * row.gpu_hours_training)
    assert (row.cpu_source, row.cpu_s, row.cpu_cores_most_per_node) == ("monitor", 5 * 64, 5)


def test_the_energy_of_processors_is_that_of_machines_and_not_of_nodes_simulated_on_them(results: Path) -> None:
    usage = assemble(sampled_run(results)).usage
    assert usage is not None
    package = Energy(source="RAPL", run_j=600.0, measured_j=500.0)
    node = usage.nodes[0].replace(package_energy=package)
    for name, nodes in (("node0", 1), ("node1", 2)):
        sums = sums_of(usage.replace(nodes=(node, node.replace(node=name))), (), 1.0)
        assert (sums.rapl_j, sums.rapl_measured_j) == (600 * nodes, 500 * nodes)
    assert sums_of(usage.replace(nodes=(node, usage.nodes[0].replace(node="node1"))), (), 1.0).rapl_j is None


def test_samples_that_met_no_process_are_no_memory(results: Path, slurm: Known) -> None:
    sampled_run(results, training_rss_bytes=0)
    write_job(results)
    slurm["scontrol"][JOB] = controlled_job()
    row = the_row(results)
    assert (row.memory_used_mb_per_node, row.memory_source, row.memory_efficiency) == (None, None, None)


def test_the_memory_of_the_samples_where_slurm_measures_none(results: Path, slurm: Known) -> None:
    sampled_run(results, training_rss_bytes=300 * MB)
    write_job(results)
    slurm["scontrol"][JOB] = controlled_job()
    row = the_row(results)
    assert (row.memory_used_mb_per_node, row.memory_source) == (300, "monitor")


def test_a_job_writes_its_file_at_its_begin_and_at_its_end(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    job = make_plan_of(make_specs(["1x2"], repeats=2)).jobs[0]
    for name in ("local-a-1", "local-a-1.2"):
        with accounted(results, job, "local-a-1", "measure"):
            assert dict(job_file.job_files(results))[name].ended_at_s is None
        assert dict(job_file.job_files(results))[name].ended_at_s is not None
    with pytest.raises(KeyError), accounted(results, job, "local-a-3", "measure"):
        raise KeyError
    found = update.update(results)
    assert {row.job_id for row in found} == {"local-a-1", "local-a-1.2", "local-a-3"}
    assert {(row.source, row.gpus, row.runs_planned) for row in found} == {("none", 2, 2)}


@pytest.mark.parametrize(
    ("environment", "is_part"),
    [
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "interactive"}, True),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": f"me_{NAME}"}, False),
        ({"SLURM_JOB_ID": "1"}, False),
        ({"SLURM_JOB_NAME": "x"}, False),
    ],
)
def test_a_job_that_is_part_of_an_allocation(environment: dict[str, str], is_part: bool) -> None:
    assert job_file._is_in_allocation(environment) is is_part


def test_samples_are_kept_while_the_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[StepUse, ...]] = []
    seen = threading.Event()
    monkeypatch.setattr(job_file, "FIRST_SAMPLE_S", 0.0)
    monkeypatch.setattr(job_file, "SAMPLE_EVERY_S", 0.01)
    monkeypatch.setattr(job_file, "samples_are_needed", lambda: True)
    answers = iter([[step("0", 1, 200)], [step("0", 1, 100)], [step("1", 1, 50)]])

    def keep(steps: tuple[StepUse, ...]) -> None:
        kept.append(steps)
        if len(kept) == 3:
            seen.set()

    sampler = Sampler(keep, JOB, lambda job_id: next(answers, []))
    assert seen.wait(30)
    assert sampler.stop() == (step("0", 1, 200), step("1", 1, 50))
