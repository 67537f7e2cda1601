"""The agents' signs of life as the job sees them, with a clock that says what the test wants."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ddp_ladder.common.files import Agent, RunDirectory, write_json
from ddp_ladder.common.process import start_allowance_s
from ddp_ladder.run import signs
from ddp_ladder.run.signs import FIRST_AFTER_S, LOOK_S, SILENT_AFTER_S, SignsOfLife, sign_of_life
from make_preflight import agent_end, run_file
from make_records import make_spec

FIRST, SECOND = Agent(0), Agent(1)


class Desk:
    """Two agents, and the job that looks at their files. step: what rank 0 shows; it makes so many in each look."""

    signs: SignsOfLife

    def __init__(self, path: Path) -> None:
        self.now_s, self.touches, self.step, self.steps = 1000.0, 0, 0, 0
        self.directory = RunDirectory(path)
        self.directory.nodes.mkdir()

    def begin(self, nodes: int = 2, per_node: int = 1) -> None:
        run = run_file(make_spec(f"{nodes}x{per_node}"), self.directory.path)
        self.run = run.replace(preflight=None, agents_per_node=per_node)
        self.signs = SignsOfLife(self.directory, self.run)

    def touch(self, *agents: Agent) -> None:
        self.touches += 1
        for agent in agents:
            self.directory.sign(agent.node_rank).touch()
            os.utime(self.directory.sign(agent.node_rank), (self.touches, self.touches))

    def later(self, seconds: float, *touching: Agent) -> list[int]:
        """Look every few seconds, with these agents alive; return the nodes of those that are silent then."""
        for _ in range(int(seconds / LOOK_S)):
            self.now_s += LOOK_S
            self.touch(*touching)
            self.step += self.steps
            if self.step:
                write_json(self.directory.progress, {"step": self.step})
            self.signs.look()
        return [end.node_rank for end in self.signs.silent]

    def end(self, agent: Agent, **values: Any) -> None:
        self.directory.sign(agent.node_rank).unlink(missing_ok=True)
        write_json(self.directory.agent_end(agent), agent_end(self.run, agent.node_rank, **values).model_dump())


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    desk = Desk(tmp_path)
    monkeypatch.setattr(signs, "time", SimpleNamespace(monotonic=lambda: desk.now_s))
    desk.begin()
    return desk


def test_an_agent_whose_file_does_not_change_is_silent_and_no_other(desk: Desk) -> None:
    assert desk.later(1000, FIRST, SECOND) == []
    assert desk.later(SILENT_AFTER_S - LOOK_S, FIRST) == []
    assert desk.later(LOOK_S, FIRST) == [1]
    (silent,) = desk.signs.silent
    assert (silent.silent_s, silent.has_begun) == (SILENT_AFTER_S, True)
    assert desk.later(LOOK_S, FIRST, SECOND) == []


def test_a_look_that_comes_late_counts_from_anew(desk: Desk) -> None:
    """The job was suspended with its agents, or the file system did not answer."""
    desk.later(LOOK_S, FIRST, SECOND)
    desk.now_s += 3600
    assert desk.later(SILENT_AFTER_S, FIRST) == []
    assert desk.later(LOOK_S, FIRST) == [1]


def test_a_job_that_cannot_look_itself_blames_no_agent(desk: Desk) -> None:
    desk.later(SILENT_AFTER_S - LOOK_S, FIRST, SECOND)
    shutil.rmtree(desk.directory.nodes)
    desk.directory.nodes.write_text("in the way")
    assert desk.later(600) == []


def test_on_a_file_system_that_became_read_only_no_agent_is_silent(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.later(LOOK_S, FIRST, SECOND)
    monkeypatch.setattr(signs.os, "access", lambda path, mode: False)
    assert desk.later(600) == []


def test_an_agent_that_ended_is_not_silent_also_if_it_left_its_file_or_its_record_is_seen_late(desk: Desk) -> None:
    desk.later(LOOK_S, FIRST, SECOND)
    desk.end(FIRST)
    desk.directory.sign(SECOND.node_rank).unlink()
    assert desk.later(600) == []
    desk.end(SECOND)
    desk.touch(FIRST)
    assert desk.later(600) == []


def test_an_agent_that_does_not_begin_has_more_time_and_most_while_others_begin(desk: Desk) -> None:
    desk.later(200)
    assert desk.later(FIRST_AFTER_S, FIRST) == []
    assert desk.later(LOOK_S, FIRST) == [1]
    (silent,) = desk.signs.silent
    assert (silent.silent_s, silent.has_begun) == (200 + FIRST_AFTER_S + LOOK_S, False)


def test_while_rank_0_makes_steps_no_agent_is_silent(desk: Desk) -> None:
    """Its node may be slow, or its agent stopped: what the run is for goes on."""
    desk.later(LOOK_S, FIRST, SECOND)
    desk.steps = 1
    assert desk.later(600, FIRST) == []
    desk.steps = 0
    assert desk.later(SILENT_AFTER_S - LOOK_S, FIRST) == []
    assert desk.later(LOOK_S, FIRST) == [1]


def test_until_the_first_step_many_agents_have_more_time(desk: Desk) -> None:
    desk.begin(nodes=80)
    others = [Agent(node) for node in range(1, 80)]
    desk.later(LOOK_S, FIRST, *others)
    assert desk.later(SILENT_AFTER_S + start_allowance_s(80) - LOOK_S, *others) == []
    assert desk.later(LOOK_S, *others) == [0]
    desk.step = 1
    desk.later(LOOK_S, FIRST, *others)
    assert desk.later(SILENT_AFTER_S, *others) == [0]


@pytest.mark.parametrize("failed", [False, True])
def test_srun_is_overdue_after_all_agents_have_ended_or_one_has_failed(desk: Desk, failed: bool) -> None:
    desk.later(LOOK_S, FIRST, SECOND)
    desk.end(FIRST, exit_code=1 if failed else 0)
    desk.later(SILENT_AFTER_S, SECOND)
    assert not desk.signs.is_overdue
    desk.later(LOOK_S, SECOND)
    assert desk.signs.is_overdue == failed
    desk.end(SECOND)
    desk.later(SILENT_AFTER_S + LOOK_S)
    assert desk.signs.is_overdue


def test_an_agent_whose_parent_died_is_named_at_once(desk: Desk) -> None:
    desk.later(LOOK_S, FIRST, SECOND)
    desk.end(SECOND, exit_code=-15, signal="SIGTERM", orphaned=True)
    desk.later(LOOK_S, FIRST)
    assert desk.signs.orphan
    assert desk.signs.orphan[0] == SECOND


def test_an_agent_touches_its_file_until_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs, "BEAT_S", 0.05)
    file = tmp_path / "node0.alive"
    with sign_of_life(file):
        times = set()
        while len(times) < 3:
            if file.exists():
                times.add(file.stat().st_mtime_ns)
    assert not file.exists()
