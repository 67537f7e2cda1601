"""A hang of many nodes: the files that the agents and the job touch, and the node that nobody reaches."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from ddp_ladder.common.files import Agent, RunDirectory
from ddp_ladder.diagnosis.hangs import hang_failure
from ddp_ladder.records.raw_models import RunFile
from ddp_ladder.run import hangs
from ddp_ladder.run.hangs import HangWatch, Seen, Stalls, neighbours
from ddp_ladder.run.signs import SignsOfLife
from ddp_ladder.settings.keys import Hang
from make_preflight import run_file
from make_records import make_spec
from opened_files import opened

BOUNDS = Hang(times_median_step=10.0, at_least_s=60.0, first_step_s=1800.0)
CUT_OFF = 5


class Cluster:
    """The agents of a run on nodes of which all but one reach each other, and its job."""

    def __init__(self, path: Path, nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.tested = RunDirectory(path), 0
        self.run: RunFile = run_file(make_spec(f"{nodes}x1"), path, host="10.0.0.0").replace(hang=BOUNDS)
        self.directory.nodes.mkdir()
        for node in range(nodes):
            self.directory.sign(node).write_text(f"10.0.0.{node}")
        self.signs, self.stalls = SignsOfLife(self.directory, self.run), Stalls(self.directory, self.run)
        monkeypatch.setattr(hangs, "why_unreached", self._why_unreached)
        monkeypatch.setattr(hangs.socket, "gethostname", lambda: self.run.nodes[self._node])
        self.signs._every_s = 0.0

    def _why_unreached(self, host: str, port: int) -> str | None:
        self.tested += 1
        return "timed out" if host in (f"10.0.0.{CUT_OFF}", self._unreached_from) else None

    def report(self, node: int) -> None:
        watch = HangWatch(self.directory, self.directory.nodes, self.run, BOUNDS, Agent(node))
        self._node, self._unreached_from = node, "10.0.0.0" if node == CUT_OFF else ""
        watch._write(watch._report, {node: Seen(node, None, 70.0)}, {node: "stuck"})

    def is_hang(self) -> bool:
        self.signs.look()
        return self.stalls.is_hang(self.signs.files)


@pytest.mark.parametrize("nodes", [64, 256])
def test_each_report_is_read_once_and_the_node_that_nobody_reaches_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    cluster = Cluster(tmp_path, nodes, monkeypatch)
    with opened() as begin:
        cluster.signs.look()
    with opened() as reports:
        for node in range(nodes - 1):
            cluster.report(node)
    with opened() as waits:
        assert not any(cluster.is_hang() for _ in range(10))
    cluster.report(nodes - 1)
    with opened() as reads:
        assert all(cluster.is_hang() for _ in range(10))
    progress = 1  # rank 0's
    begun, reported, waited, read = (Counter(event for event, _ in events) for events in (begin, reports, waits, reads))
    assert begun == {"os.scandir": 1, "open": nodes + progress + 1}  # the addresses, and the file of all
    assert reported["open"] == 2 * (nodes - 1)  # that file, and the report
    assert waited == {"os.scandir": 10, "open": 10 * progress}
    assert read == {"os.scandir": 10, "open": nodes + 10 * progress}
    assert cluster.tested <= nodes * (nodes.bit_length() + 1)
    failure = hang_failure([*cluster.stalls.reports.values()], "")
    assert failure.verdict == "nodes are cut off from each other"
    assert failure.node == cluster.run.nodes[CUT_OFF]


def test_a_report_that_changes_is_read_again_and_one_that_is_taken_back_ends_the_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, 2, monkeypatch)
    for node in (0, 1):
        cluster.report(node)
    assert cluster.is_hang()
    before = cluster.stalls.reports[Agent(1)]
    cluster.report(1)
    assert cluster.is_hang()
    assert cluster.stalls.reports[Agent(1)].found_at_s > before.found_at_s
    cluster.directory.hang(Agent(1)).unlink()
    assert not cluster.is_hang()


@pytest.mark.parametrize("nodes", [2, 3, 5, 100])
def test_a_node_has_as_many_testers_as_others_and_the_head_is_tested_by_all(nodes: int) -> None:
    testers = Counter(other for node in range(nodes) for other in neighbours(node, nodes))
    assert testers[0] == nodes - 1
    assert len({testers[node] for node in range(1, nodes)}) == 1
    assert testers[1] <= nodes.bit_length()


def two_watches(path: Path, monkeypatch: pytest.MonkeyPatch, *beats: dict[str, object]) -> list[HangWatch]:
    """Return the watches of two nodes of one rank each, with these heartbeats; rank 1 is on a line of its script."""
    cluster = Cluster(path, 2, monkeypatch)
    monkeypatch.setattr(hangs, "BEATS_S", 0.0)
    monkeypatch.setattr(hangs, "find_process", lambda _: ("alive", None))
    monkeypatch.setattr(hangs, "stacks", lambda *_: {1: 'Stack (most recent call first):\n  File "t.py", line 7 in f'})
    watches = [HangWatch(cluster.directory, path, cluster.run, BOUNDS, Agent(node)) for node in (0, 1)]
    for node, beat in enumerate(beats):
        usual = {"pid": 7, "signal": None, "moved_monotonic_s": 1.0, "written_monotonic_s": 1.0, "sequence": None}
        (path / f"rank{node}.heartbeat").write_text(json.dumps({**usual, **beat}))
        watches[node]._begin_s = 0.0
    cluster._node, cluster._unreached_from = 1, ""
    return watches


def test_an_agent_whose_rank_has_ended_tells_the_others_with_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody lists what the ranks have written. A rank that sleeps after its loop is stuck once another has ended."""
    steps = {"steps": 9, "step_s": 0.1}
    beats = ({"phase": "ended", **steps}, {"phase": "between passes", **steps})
    watches = two_watches(tmp_path, monkeypatch, *beats)
    watches[1]._look(100.0)
    assert not watches[1].reports
    watches[0]._thread.start()
    watches[0].end(keep_report=False)
    watches[1]._look(200.0)
    assert watches[1].reports


def test_an_agent_without_a_report_is_awaited_for_as_long_as_a_pause_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, now_s = Cluster(tmp_path, 2, monkeypatch), 1000.0
    monkeypatch.setattr(hangs, "time", SimpleNamespace(monotonic=lambda: now_s, time=time.time))
    cluster.report(0)
    assert not cluster.is_hang()
    now_s += 1800
    assert not cluster.is_hang()
    now_s += 1
    assert cluster.is_hang()
