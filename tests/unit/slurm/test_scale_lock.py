"""The lock on a scale's run directories: what holds it, what has let go of it, and many that want it at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.messages import UserError
from ddp_ladder.common.process_id import ProcessId
from ddp_ladder.slurm import scale_lock
from ddp_ladder.slurm.scale_lock import Holder, Locked, held, problem_of_holder

ELSEWHERE = replace(ProcessId.own(), host="node9", kernel="another")
AN_HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_lock, "BEAT_S", 0.02)
    monkeypatch.setattr(scale_lock, "LOOK_S", 0.02)
    monkeypatch.setattr(scale_lock, "SILENT_AFTER_S", 30.0)
    monkeypatch.setattr(scale_lock, "ENDS_WITHIN_S", 0.1)


@pytest.fixture
def dead() -> ProcessId:
    """A process of this machine that has ended."""
    tell = "import json, dataclasses; from ddp_ladder.common.process_id import ProcessId as P; "
    tell += "print(json.dumps(dataclasses.asdict(P.own())))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", tell], env=env, capture_output=True, text=True, check=True)
    return ProcessId(**json.loads(done.stdout))


def lock(results: Path, holder: Holder, number: int = 1, age_s: float = 0.0) -> Path:
    path = results / f"jobs/1x4.lock{number}"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"schema_version": 1, **asdict(holder)}))
    at_s = path.stat().st_mtime - age_s
    os.utime(path, (at_s, at_s))
    return path


def slurm_says(path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    (path / "squeue").write_text(f"#!/bin/sh\necho 'ddp-ladder|JOBID|STATE|START_TIME|NODELIST|REASON'\n{line}\n")
    (path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(path), prepend=":")


class Desk:
    """Who takes the lock as job 13, and what it hears."""

    def __init__(self, results: Path) -> None:
        self.results, self.said, self.losses = results, list[str](), threading.Event()

    def take(self, job_id: str = "13") -> Any:
        return held(Locked.scale(self.results, "1x4", "stage2 1x4"), job_id, self.said.append, self.losses.set)

    @property
    def locks(self) -> list[str]:
        return sorted(path.name for path in (self.results / "jobs").iterdir())


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    (tmp_path / "results").mkdir()
    return Desk(tmp_path / "results")


def test_a_second_job_is_refused_with_the_name_of_the_holder(desk: Desk) -> None:
    with desk.take("12"):
        with pytest.raises(UserError) as caught, desk.take():
            pytest.fail("two jobs hold it")
        assert problem_of_holder(desk.results, "1x4", desk.said.append) is not None
    text = str(caught.value)
    assert text.startswith("stage2 1x4: another job holds its run directories")
    assert f"job 12 on {ProcessId.own().host}, process {os.getpid()}, since 20" in text
    assert "`scancel 12`" in text
    assert desk.said == []


def test_a_job_that_has_ended_has_let_go(desk: Desk) -> None:
    for job_id in ("12", "13"):
        with desk.take(job_id):
            pass
    assert problem_of_holder(desk.results, "1x4", desk.said.append) is None
    assert desk.locks == ["1x4.lock2"]
    assert desk.said == []


def test_one_of_a_start_that_was_killed_is_given_time_to_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_lock, "ENDS_WITHIN_S", 30.0)
    path = lock(desk.results, Holder.here("local-7"))
    waits = threading.Timer(0.2, lambda: lock(desk.results, replace(Holder.here("local-7"), ended=True)))
    waits.start()
    with desk.take():
        assert "1x4.lock2" in desk.locks
    waits.join()
    assert [line.partition(": job local-7 on ")[0] for line in desk.said] == ["stage2 1x4"]
    assert desk.said[0].endswith("waiting for its end")
    assert not path.exists()


def test_other_scales_are_held_apart(desk: Desk) -> None:
    with desk.take(), held(Locked.scale(desk.results, "1x2", "stage2 1x2"), "14", desk.said.append, desk.losses.set):
        assert desk.locks == ["1x2.lock1", "1x4.lock1"]


def test_the_lock_of_a_process_that_is_dead_is_taken_over(desk: Desk, dead: ProcessId) -> None:
    lock(desk.results, Holder("12", dead, "then"))
    with desk.take():
        assert desk.locks == ["1x4.lock2"]
    assert desk.said == []


@pytest.mark.parametrize("state", ["COMPLETED", "TIMEOUT", "NODE_FAIL", "PENDING"])
def test_slurm_says_that_the_job_is_over_or_not_yet_back(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """PENDING: it was requeued."""
    slurm_says(tmp_path, monkeypatch, f"echo 'ddp-ladder|12|{state}|N/A|node9|None'")
    lock(desk.results, Holder("12", ELSEWHERE, "then"))
    with desk.take():
        assert desk.said == []


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED", "COMPLETING"])
def test_slurm_says_that_the_job_goes_on_also_where_it_shows_no_life(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    slurm_says(tmp_path, monkeypatch, f"echo 'ddp-ladder|12|{state}|N/A|node9|None'")
    lock(desk.results, Holder("12", ELSEWHERE, "then"), age_s=AN_HOUR_S)
    with pytest.raises(UserError, match="job 12 on node9, process"), desk.take():
        pytest.fail("two jobs hold it")


NOBODY_KNOWS = {
    "unknown to Slurm": ("12", "true"),
    "Slurm is silent": ("12", "exit 1"),
    "of another machine without Slurm": ("local-laptop-20261121T210000-7", "true"),
    "requeued, or another start in the allocation": ("13", "echo 'ddp-ladder|13|RUNNING|N/A|node9|None'"),
}


@pytest.mark.parametrize("case", NOBODY_KNOWS)
def test_a_beating_lock_is_a_living_job_and_a_silent_one_is_taken_over(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    job_id, line = NOBODY_KNOWS[case]
    slurm_says(tmp_path, monkeypatch, f"{line}; exit 0" if line == "true" else line)
    monkeypatch.setattr(scale_lock, "OLD_S", AN_HOUR_S)
    path = lock(desk.results, Holder(job_id, ELSEWHERE, "then"))
    with beating(path), pytest.raises(UserError, match=f"job {job_id} on node9"), desk.take():
        pytest.fail("two jobs hold it")
    monkeypatch.setattr(scale_lock, "SILENT_AFTER_S", 0.1)
    with desk.take():
        pass
    assert [f"is held by job {job_id} on node9" in line for line in desk.said] == [True, True]


class beating:  # noqa: N801
    """Somebody who touches a file again and again."""

    def __init__(self, path: Path) -> None:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(path,))

    def _run(self, path: Path) -> None:
        while not self._done.wait(0.02):
            os.utime(path)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def test_a_silent_lock_that_is_old_is_not_waited_for(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_lock.time, "sleep", lambda s: pytest.fail("waited"))
    lock(desk.results, Holder("local-1", ELSEWHERE, "then"), age_s=AN_HOUR_S)
    with desk.take():
        pass


@pytest.mark.parametrize("text", ["", "{", '{"schema_version": 2}', '{"schema_version": 1, "process": 3}', "[]"])
def test_a_lock_that_cannot_be_read_holds_while_it_beats(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = lock(desk.results, Holder.here("12"))
    path.write_text(text)
    with beating(path), pytest.raises(UserError, match="a job that cannot be read"), desk.take():
        pytest.fail("two jobs hold it")
    monkeypatch.setattr(scale_lock, "SILENT_AFTER_S", 0.1)
    with desk.take():
        pass


def test_a_holder_beats(desk: Desk) -> None:
    with desk.take():
        path = desk.results / "jobs/1x4.lock1"
        assert scale_lock.shows_life(lambda: scale_lock._signs([path]))


def test_one_that_was_taken_over_from_is_reported(desk: Desk) -> None:
    """It had slept for an hour, say."""
    with desk.take("12"):
        lock(desk.results, Holder.here("13"), number=2)
        assert desk.losses.wait(10)
    assert "1x4.lock2" in desk.locks


def test_a_lock_that_was_deleted_by_hand_is_made_again_unless_another_job_was_faster(desk: Desk) -> None:
    with desk.take("12"):
        path = desk.results / "jobs/1x4.lock1"
        path.unlink()
        while not path.exists():
            assert not desk.losses.wait(0.02)
        with pytest.raises(UserError, match="job 12"), desk.take():
            pytest.fail("two jobs hold it")


@pytest.mark.parametrize("number", [1, 11, 21])
def test_of_many_that_take_over_at_once_one_holds_it(desk: Desk, dead: ProcessId, number: int) -> None:
    lock(desk.results, Holder("12", dead, "then"), number)
    start, everyone_tried = threading.Barrier(8), threading.Event()
    won, lost = list[str](), list[str]()

    def take(job_id: str) -> None:
        start.wait()
        try:
            with desk.take(job_id):
                won.append(job_id)
                everyone_tried.wait(30)
        except UserError:
            lost.append(job_id)
        if len(lost) == 7:
            everyone_tried.set()

    threads = [threading.Thread(target=take, args=(str(k),)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 7)


def test_one_that_has_looked_long_ago_takes_nothing_over(
    desk: Desk, dead: ProcessId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look and its lock, others have come, gone, and come again."""
    old, create = lock(desk.results, Holder("12", dead, "then")), scale_lock._create

    def late(path: Path, holder: Holder) -> None:
        monkeypatch.setattr(scale_lock, "_create", create)
        lock(desk.results, Holder.here("14"), number=3)
        old.unlink()
        create(path, holder)

    monkeypatch.setattr(scale_lock, "_create", late)
    with pytest.raises(UserError, match="job 14 on"), desk.take():
        pytest.fail("two jobs hold it")
    assert desk.locks == ["1x4.lock3"]


def test_where_it_cannot_be_written_it_says_so(desk: Desk) -> None:
    (desk.results / "jobs").write_text("")  # keeps root out, too
    with pytest.raises(UserError, match="the lock of 1x4 cannot be written"), desk.take():
        pytest.fail("held by nobody")
