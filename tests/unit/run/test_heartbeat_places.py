"""Where an agent's heartbeats are: on its own node if that is possible, and nothing is left of killed agents."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from ddp_ladder.common.files import write_json
from ddp_ladder.common.process import ProcessId
from ddp_ladder.run import signs
from ddp_ladder.run.signs import OWNER, PREFIX, heartbeat_places, make_heartbeats


def test_they_are_in_memory_else_in_tmpdir_else_beside_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = memory, temporary, nodes = [tmp_path / name for name in ("shm", "tmp", "nodes")]
    monkeypatch.setattr(signs, "MEMORY", memory)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(temporary))
    assert heartbeat_places(True, nodes) == (memory, nodes)
    for place in reversed(places):
        place.mkdir()
        assert make_heartbeats(heartbeat_places(False, nodes)).parent == place


def test_those_of_a_killed_agent_are_removed_by_the_next_one(tmp_path: Path) -> None:
    alive, other = make_heartbeats([tmp_path]), tmp_path / f"{PREFIX}other"
    other.mkdir()  # nobody knows whose it is
    for name, changes in {"killed": {"started": 1.0}, "elsewhere": {"host": "node9", "kernel": "another"}}.items():
        write_json(tmp_path / f"{PREFIX}{name}" / OWNER, asdict(replace(ProcessId.own(), **changes)))
    new = make_heartbeats([tmp_path])
    assert set(tmp_path.iterdir()) == {alive, other, new, tmp_path / f"{PREFIX}elsewhere"}
