"""The look for a job of an earlier start before a new one submits its own: a stand-in for squeue on the PATH."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from ddp_ladder.climb.submission import require_no_job_left
from ddp_ladder.common.messages import UserError
from ddp_ladder.common.process_id import ProcessId
from ddp_ladder.slurm import scale_lock
from ddp_ladder.slurm.job_end import SUBMITTED, JobEnd, job_end_file, write_job_end
from ddp_ladder.slurm.job_names import new_job_name
from ddp_ladder.slurm.scale_lock import Holder

UNKNOWN = "job 7 of 1x4: unknown to squeue and sacct, but its files change: 7.log"


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

    def note(self, state: str = SUBMITTED) -> None:
        write_job_end(self.results, JobEnd("7", "stage2", "1x4", state, "7.log"))

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
    monkeypatch.setattr(scale_lock, "SILENT_AFTER_S", 0.2)
    monkeypatch.setattr(scale_lock, "LOOK_S", 0.02)
    monkeypatch.setattr("ddp_ladder.slurm.states.shutil.which", lambda name: None)  # no sacct
    return Desk(tmp_path)


def lost(desk: Desk) -> None:
    """The start was killed before it could note the job."""


def torn(desk: Desk) -> None:
    job_end_file(desk.results, "1x4").parent.mkdir(parents=True)
    job_end_file(desk.results, "1x4").write_text("{")


@pytest.mark.parametrize("note", [Desk.note, lost, torn])
@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING"])
def test_a_job_in_the_queue_is_reported_whether_or_not_it_was_noted(desk: Desk, note, state: str) -> None:  # type: ignore[no-untyped-def]
    note(desk)
    desk.squeue(state)
    text = desk.left()
    assert "a job of an earlier start is not over" in text
    assert f"found    job 7 of 1x4: {state}\n" in text
    assert "`scancel 7`" in text
    assert text.count("found") == 1


@pytest.mark.parametrize("note", [Desk.note, lost, torn])
@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", ""])
def test_one_that_has_ended_is_no_hindrance(desk: Desk, note, state: str) -> None:  # type: ignore[no-untyped-def]
    note(desk)
    desk.squeue(state)
    assert desk.left() == ""


def growing(desk: Desk) -> Path:
    return desk.path / "7.log"


def progressing(desk: Desk) -> Path:
    return desk.results / "runs/default/weak/1x4/r1/progress.json"


def of_a_node(desk: Desk) -> Path:
    return desk.results / "runs/ring/strong/1x4/r2/nodes/node0.log"


@pytest.mark.parametrize("which", [growing, progressing, of_a_node])
def test_one_that_slurm_does_not_know_is_not_over_while_its_files_change(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, which
) -> None:  # type: ignore[no-untyped-def]
    desk.note()
    path = which(desk)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    assert desk.left() == "", "nothing changes"
    monkeypatch.setattr(scale_lock, "SILENT_AFTER_S", 30.0)
    done = threading.Event()

    def grow() -> None:
        while not done.wait(0.02):
            with path.open("a") as file:
                file.write("x")

    thread = threading.Thread(target=grow)
    thread.start()
    text = desk.left()
    done.set()
    thread.join()
    assert UNKNOWN in text


def test_a_lock_that_is_held_is_reported_where_the_queue_shows_nothing(desk: Desk) -> None:
    """Of a start on another machine, say, or of a job that was submitted by hand."""
    path = desk.results / "jobs/1x4.lock1"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"schema_version": 1, **asdict(Holder.here("8"))}))
    assert f"job 8 on {ProcessId.own().host}" in desk.left()
    path.write_text(json.dumps({"schema_version": 1, **asdict(replace(Holder.here("8"), ended=True))}))
    assert desk.left() == ""


def test_nothing_is_submitted_while_squeue_is_silent(desk: Desk) -> None:
    desk.squeue("", code=1)
    assert desk.left().startswith("squeue: ")
