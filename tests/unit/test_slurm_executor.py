from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ddp_ladder import slurm_executor
from ddp_ladder.progress import Board
from ddp_ladder.slurm_executor import replace_executor_methods
from ddp_ladder.submit import Submission


class Plugin:
    """What of the plugin's class the ladder needs."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.submitted: list[Any] = []

    def report_job_error(self, _info: Any, msg: str, aux_logs: Sequence[str]) -> None:
        self.errors.append(msg)

    def _report_job_submission_threadsafe(self, info: Any) -> None:
        self.submitted.append(info)

    def run_job(self, job: Any) -> None: ...

    def check_active_jobs(self, active_jobs: Sequence[Any]) -> Any: ...

    def cancel_jobs(self, active_jobs: Sequence[Any]) -> None: ...

    def get_account_arg(self, job: Any) -> Any: ...

    def get_partition_arg(self, job: Any) -> Any: ...


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
    monkeypatch.setattr(slurm_executor, "Board", lambda: Board(terminal))
    replace_executor_methods(Plugin, tmp_path / "results", lambda _scale: "stage1")
    plugin = Plugin()
    job = SimpleNamespace(wildcards=SimpleNamespace(scale="1x1"))
    wanted = Submission("stage1 1x1", "1x1", "name", ["sbatch"], "script")
    monkeypatch.setattr(slurm_executor, "_submission", lambda *_: (wanted, tmp_path))
    plugin.run_job(job)
    (info,) = plugin.submitted
    assert info.external_jobid == "7"

    async def look() -> list[Any]:
        return [each async for each in plugin.check_active_jobs([info])]

    assert asyncio.run(look()) == []
    (told,) = plugin.errors
    assert "job 7 ended TIMEOUT on node1" in told
    not_kept = f"is not kept: {tmp_path}/results/jobs/1x1.json cannot be written: Not a directory"
    assert not_kept in told
    assert terminal.getvalue().count(not_kept) == 1
