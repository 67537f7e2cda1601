from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ddp_ladder.climb import executor
from ddp_ladder.climb.executor import ladder_executor
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.run.progress import Console
from ddp_ladder.settings.keys import Slurm
from ddp_ladder.settings.terms import Scale
from ddp_ladder.slurm.jobs import Submission
from snakemake_executor_plugin_slurm import Executor as SlurmExecutor
from snakemake_executor_plugin_slurm.submit_string import get_submit_command


class Plugin:
    """What of the plugin's class the ladder needs."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.submitted: list[Any] = []
        self._job_submission_executor = ThreadPoolExecutor()
        self.slurm_logdir = Path()

    def report_job_error(self, _info: Any, msg: str, aux_logs: Sequence[str]) -> None:
        self.errors.append(msg)

    def _report_job_submission_threadsafe(self, info: Any) -> None:
        self.submitted.append(info)

    def _report_job_error_threadsafe(self, info: Any, msg: str) -> None:
        self.errors.append(msg)

    def run_job(self, job: Any) -> None:
        self.submitted.append(job)

    async def check_active_jobs(self, active_jobs: Sequence[Any]) -> AsyncIterator[Any]:
        self.next_seconds_between_status_checks = 3600
        for info in active_jobs[1:]:
            yield info

    def cancel_jobs(self, active_jobs: Sequence[Any]) -> None:
        self.cancelled = list(active_jobs)


def executor_of(results: Path, rule: str) -> Any:
    stage1: Any = SimpleNamespace(stage="stage1")
    return ladder_executor(Plugin, results, lambda _scale: stage1, [rule])()


def job_of(rule: str) -> Any:
    return SimpleNamespace(
        rule=SimpleNamespace(name=rule), wildcards=SimpleNamespace(scale="1x1"), is_group=lambda: False
    )


def test_a_disk_that_takes_no_file_ends_no_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header, row = "ddp-ladder|JOBID|STATE|START_TIME|NODELIST|REASON", "ddp-ladder|7|TIMEOUT|2026|node1|TimeLimit"
    named = "echo 'ddp-ladder|JOBID|STATE|START_TIME|NODELIST|REASON|NAME'; exit"
    for name, script in (
        ("squeue", f"case \"$*\" in *%j*) {named};; esac; printf '%s\\n' '{header}' '{row}'"),
        ("sbatch", "cat >/dev/null; echo 7"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "results").write_text("in the way")
    terminal = io.StringIO()
    monkeypatch.setattr(executor, "Console", lambda: Console(terminal))
    plugin = executor_of(tmp_path / "results", "measure_stage1")
    job = job_of("measure_stage1")
    wanted = Submission("stage1 1x1", "1x1", "name", ["sbatch"], "script")
    monkeypatch.setattr(executor, "_submission", lambda *_: (wanted, tmp_path))
    plugin.run_job(job)
    (info,) = plugin.submitted
    assert info.external_jobid == "7"

    async def look() -> list[Any]:
        return [each async for each in plugin.check_active_jobs([info])]

    assert asyncio.run(look()) == []
    (message,) = plugin.errors
    assert "job 7 ended TIMEOUT on node1" in message
    not_kept = f"is not recorded: {tmp_path}/results/jobs/1x1.json cannot be written: Not a directory"
    assert not_kept in message
    assert terminal.getvalue().count(not_kept) == 1


def test_jobs_of_another_workflows_rules_stay_the_plugins(tmp_path: Path) -> None:
    others = [SimpleNamespace(job=job_of(name), external_jobid="1") for name in ("align", "sort")]
    group = SimpleNamespace(job=SimpleNamespace(is_group=lambda: True), external_jobid="2")
    plugin = executor_of(tmp_path / "results", "ladder_measure_stage1")
    plugin.run_job(others[0].job)
    assert plugin.submitted == [others[0].job]

    async def look() -> list[Any]:
        return [each async for each in plugin.check_active_jobs([*others, group])]

    assert asyncio.run(look()) == [others[1], group]
    assert plugin.next_seconds_between_status_checks == 3600  # the plugin's own time
    plugin.cancel_jobs([*others, group])
    assert plugin.cancelled == [*others, group]


def test_the_installed_plugin_has_all_that_is_overridden_and_called() -> None:
    """The last two are private: they report to Snakemake from the thread that submits a job."""
    used = "run_job check_active_jobs cancel_jobs _report_job_submission_threadsafe _report_job_error_threadsafe"
    assert [name for name in used.split() if not hasattr(SlurmExecutor, name)] == []


def test_tasks_per_gpu_of_the_plugin_reach_its_sbatch_and_not_the_ladders(tmp_path: Path) -> None:
    """Two processes with a GPU each need two tasks that see both: issues 342, 373 and 459 of the plugin."""
    resources = {
        "gpu": 2,
        "gres": "gpu:2",
        "tasks_per_gpu": 1,
        "slurm_extra": "--gpu-bind=single:1",
        "cpus_per_task": 4,
    }
    job: Any = job_of("measure_stage1")
    job.name, job.threads, job.resources = "measure_stage1", 4, Resources(resources)
    params = {"run_uuid": "1", "slurm_logfile": "x", "comment_str": "x", "account": "", "partition": "", "workdir": ""}
    words = ("--ntasks-per-gpu=1", "--gpu-bind=single:1")
    assert all(word in get_submit_command(job, params) for word in words)
    planned = ScaleJob("stage2", Scale(1, 2), 5, (), 4, Slurm(), gres="gpu:2")
    ladder: Any = SimpleNamespace(
        job_of=lambda _scale: planned,
        results=tmp_path,
        slurm_logdir=tmp_path,
        workflow=SimpleNamespace(workdir_init=tmp_path),
        format_job_exec=lambda _job: "snakemake",
    )
    submission, _ = executor._submission(ladder, job)
    assert [word for word in submission.argv if word.startswith(("--gpu", "--gres", "--ntasks-per-gpu"))] == [
        "--gres=gpu:2"
    ]


class Resources(dict[str, Any]):
    """A job's resources, as Snakemake gives them to the plugin."""

    __getattr__ = dict.__getitem__
