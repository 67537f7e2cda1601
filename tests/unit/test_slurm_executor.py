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


class Plugin:
    """What of the plugin's class the ladder needs."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def report_job_error(self, _info: Any, msg: str, aux_logs: Sequence[str]) -> None:
        self.errors.append(msg)

    def check_active_jobs(self, active_jobs: Sequence[Any]) -> Any: ...

    def cancel_jobs(self, active_jobs: Sequence[Any]) -> None: ...

    def get_account_arg(self, job: Any) -> Any: ...

    def get_partition_arg(self, job: Any) -> Any: ...


def test_a_disk_that_takes_no_file_ends_no_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\necho '7|TIMEOUT|2026-11-21T00:00:00|node1|TimeLimit'\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "results").write_text("in the way")
    terminal = io.StringIO()
    monkeypatch.setattr(slurm_executor, "Board", lambda: Board(terminal))
    replace_executor_methods(Plugin, tmp_path / "results", lambda _scale: "stage1")
    plugin = Plugin()
    job = SimpleNamespace(wildcards=SimpleNamespace(scale="1x1"))
    info = SimpleNamespace(external_jobid="7", aux={"slurm_logfile": str(tmp_path / "log")}, job=job)

    async def look() -> list[Any]:
        return [each async for each in plugin.check_active_jobs([info])]

    assert asyncio.run(look()) == []
    (told,) = plugin.errors
    assert "job 7 ended TIMEOUT on node1" in told
    not_kept = f"is not kept: {tmp_path}/results/jobs/1x1.json cannot be written: Not a directory"
    assert not_kept in told
    assert terminal.getvalue().count(not_kept) == 1
