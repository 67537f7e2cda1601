"""Locks of a start, of a scale and of data: what holds one, what has let go of it, and many that want it at once."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.messages import UserError
from ddp_ladder.common.process import ProcessId
from ddp_ladder.slurm import lock as locks
from ddp_ladder.slurm.lock import START, Holder, Lock, held

ELSEWHERE = replace(ProcessId.own(), host="node9", kernel="another")
DEAD = replace(ProcessId.own(), started=0.0)  # its number is another process now


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value_s in (("BEAT_S", 0.02), ("LOOK_S", 0.02), ("SILENT_AFTER_S", 30.0), ("ENDS_WITHIN_S", 0.1)):
        monkeypatch.setattr(locks, name, value_s)


def lock(results: Path, holder: Holder, number: int = 1, age_s: float = 0.0) -> Path:
    path = results / f"jobs/1x4.lock{number}"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(asdict(holder)))
    at_s = path.stat().st_mtime - age_s
    os.utime(path, (at_s, at_s))
    return path


def holder(job_id: str, process: ProcessId) -> Holder:
    return replace(Holder.here(job_id), process=process)


class Desk:
    """Who takes the lock as job 13, and what it hears."""

    def __init__(self, results: Path) -> None:
        self.results, self.said, self.losses = results, list[str](), threading.Event()

    def take(self, job_id: str = "13") -> Any:
        return held(Lock.of_scale(self.results, "1x4", "stage2 1x4"), job_id, self.said.append, self.losses.set)

    @property
    def locks(self) -> list[str]:
        return sorted(path.name for path in (self.results / "jobs").iterdir())


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    (tmp_path / "results").mkdir()
    return Desk(tmp_path / "results")


def test_a_second_job_is_refused_with_the_name_of_the_holder(desk: Desk) -> None:
    with desk.take("12"), pytest.raises(UserError) as caught, desk.take():
        pytest.fail("two jobs hold it")
    text = str(caught.value)
    assert text.startswith("stage2 1x4: another job holds its run directories")
    assert f"job 12, process {os.getpid()} on {ProcessId.own().host}, since 20" in text
    assert "`scancel 12`" in text


def test_a_second_start_is_refused_and_one_after_a_kill_is_told_of_it(tmp_path: Path) -> None:
    def start() -> Any:
        return held(Lock.of_start(tmp_path), START, pytest.fail, lambda: None)

    with start() as killed:
        assert killed is None
        with pytest.raises(UserError, match="another start holds these results") as caught, start():
            pytest.fail("two starts at once")
        assert f"`kill {os.getpid()}`" in str(caught.value)
    (tmp_path / "start.lock1").write_text(json.dumps(asdict(holder(START, DEAD))))
    with start() as killed:
        assert killed is not None
        assert killed.process == DEAD


def test_one_of_a_start_that_was_killed_is_given_time_to_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "ENDS_WITHIN_S", 30.0)
    path = lock(desk.results, Holder.here("local-7"))
    waits = threading.Timer(0.2, lambda: lock(desk.results, replace(Holder.here("local-7"), ended=True)))
    waits.start()
    with desk.take():
        assert "1x4.lock2" in desk.locks
    waits.join()
    (line,) = desk.said
    assert line.startswith("stage2 1x4: job local-7, process")
    assert line.endswith("waiting for its end")
    assert not path.exists()


def test_the_lock_of_a_process_that_is_dead_is_taken_over(desk: Desk) -> None:
    lock(desk.results, holder("12", DEAD))
    with desk.take(), held(Lock.of_scale(desk.results, "1x2", "1x2"), "14", desk.said.append, desk.losses.set):
        assert desk.locks == ["1x2.lock1", "1x4.lock2"]
    assert desk.said == []


def test_elsewhere_a_beating_lock_is_a_living_job_and_a_silent_one_is_taken_over(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lock(desk.results, holder("12", ELSEWHERE))
    with beating(path), pytest.raises(UserError, match=r"job 12, process \d+ on node9"), desk.take():
        pytest.fail("two jobs hold it")
    monkeypatch.setattr(locks, "SILENT_AFTER_S", 0.1)
    with desk.take():
        pass
    assert ["is held by job 12, process" in line for line in desk.said] == [True, True]


@contextmanager
def beating(path: Path) -> Iterator[None]:
    """Somebody touches a file again and again."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(0.02):
            os.utime(path)

    with ThreadPoolExecutor() as pool:
        pool.submit(beat)
        try:
            yield
        finally:
            done.set()


@pytest.mark.parametrize("number", [1, 11])
def test_of_many_that_take_over_at_once_one_holds_it(desk: Desk, number: int) -> None:
    lock(desk.results, holder("12", DEAD), number)
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

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(take, map(str, range(8))))
    assert (len(won), len(lost)) == (1, 7)
