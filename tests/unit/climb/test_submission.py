"""The look for a job of an earlier start before a new one submits its own: a stand-in for squeue on the PATH."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.climb.start import require_no_job_left
from ddp_ladder.common.messages import UserError
from ddp_ladder.slurm.jobs import new_job_name
from ddp_ladder.slurm.lock import Lock, held


class Desk:
    """Results of an earlier start, and what squeue says of its job 7."""

    def __init__(self, path: Path) -> None:
        self.path, self.results = path, path / "results"
        self.squeue("")

    def squeue(self, state: str, code: int = 0) -> None:
        header, row = "ddp-ladder|JOBID|STATE|START_TIME|NODELIST|REASON", f"ddp-ladder|7|{state}|N/A||None"
        name = new_job_name(self.results, "1x4")
        script = f"""#!/bin/sh
case "$*" in *%j*) header='{header}|NAME' row='{row}|{name}' ;; *) header='{header}' row='{row}' ;; esac
[ {code} = 0 ] || exit {code}
echo "$header"
[ -z "{state}" ] || echo "$row"
"""
        (self.path / "squeue").write_text(script)
        (self.path / "squeue").chmod(0o755)

    def left(self) -> str:
        try:
            require_no_job_left(self.results, ["1x4"])
        except UserError as error:
            return str(error)
        return ""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("ddp_ladder.slurm.jobs.shutil.which", lambda name: None)  # no sacct
    return Desk(tmp_path)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING"])
def test_a_job_in_the_queue_is_reported(desk: Desk, state: str) -> None:
    desk.squeue(state)
    text = desk.left()
    assert "a job of an earlier start is not over" in text
    assert f"found    job 7 of 1x4: {state}\n" in text
    assert "`scancel 7`" in text
    assert text.count("found") == 1


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", ""])
def test_one_that_has_ended_is_no_hindrance(desk: Desk, state: str) -> None:
    desk.squeue(state)
    assert desk.left() == ""


def test_one_that_slurm_does_not_know_is_not_over_while_it_holds_its_lock(desk: Desk) -> None:
    with held(Lock.of_scale(desk.results, "1x4", ""), "7", print, print):
        assert "found    job 7 of 1x4: unknown to squeue and sacct, but it holds its lock" in desk.left()
    assert desk.left() == ""


def test_nothing_is_submitted_while_squeue_is_silent(desk: Desk) -> None:
    desk.squeue("", code=1)
    assert desk.left().startswith("Slurm does not answer: ")
