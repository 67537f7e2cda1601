"""Causes before consequences: what agents saw of their ranks, against what the ranks say themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import Agent, RunDirectory, read_json
from make_records import make_spec
from make_runs import STARTED_AT_S, edit, failure_of, write_run

LOST = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:1234"
LATER_S = STARTED_AT_S + 9


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Two nodes with two ranks each."""
    return write_run(tmp_path, make_spec("2x2"))


def died(run: RunDirectory, rank: int, signal: str | None, at_s: float = LATER_S - 1, code: int = -9) -> None:
    """The rank leaves no end record, and its agent saw how it ended."""
    node, local_rank = divmod(rank, 2)
    ended = {"rank": rank, "local_rank": local_rank, "pid": 7, "exit_code": code, "signal": signal, "ended_at_s": at_s}
    edit(run.agent_end(Agent(node)), lambda end: end.setdefault("failed_ranks", []).append(ended))
    edit(run.agent_end(Agent(node)), lambda end: end.update(exit_code=1))
    (run.ranks / f"rank{rank}.json").unlink(missing_ok=True)


def raised(run: RunDirectory, rank: int, exception: str, at_s: float = LATER_S) -> None:
    values: dict[str, Any] = {"exit_code": 1, "ended_by": "exception", "exception": exception, "ended_at_s": at_s}
    edit(run.ranks / f"rank{rank}.json", lambda end: end.update(values))


def test_a_killed_rank_outranks_all_that_lost_it(run: RunDirectory) -> None:
    for rank in (0, 1, 2):
        raised(run, rank, LOST, LATER_S - 5)  # by another clock, before it
    died(run, 3, "SIGKILL")
    found = failure_of(run)
    assert (found.verdict, found.why) == ("a rank was killed", "rank 3 (node 1, node1): ended by SIGKILL")
    assert "out-of-memory killer" in found.next


def test_of_several_the_first_is_the_cause_and_those_alike_are_named_with_it(run: RunDirectory) -> None:
    died(run, 3, "SIGKILL", LATER_S)
    died(run, 1, "SIGSEGV", LATER_S - 3)
    assert failure_of(run).why == "rank 1 (node 0, node0): ended by SIGSEGV"
    died(run, 2, "SIGKILL", LATER_S - 4)
    assert failure_of(run).why == "rank 2 (node 1, node1), rank 3 (node 1, node1): ended by SIGKILL"


@pytest.mark.parametrize(
    ("killed_at_s", "verdict"), [(LATER_S - 1, "a rank was killed"), (LATER_S + 1, "the script raised an exception")]
)
def test_against_an_exception_of_its_own_the_first_is_the_cause(
    run: RunDirectory, killed_at_s: float, verdict: str
) -> None:
    raised(run, 0, "ValueError: bad batch")
    died(run, 3, "SIGKILL", killed_at_s)
    assert failure_of(run).verdict == verdict


def test_a_file_that_one_node_does_not_have(run: RunDirectory) -> None:
    raised(run, 2, "FileNotFoundError: [Errno 2] No such file or directory: '/data/part-7'", LATER_S - 1)
    raised(run, 0, LOST)
    found = failure_of(run)
    assert (found.verdict, found.why, found.rank) == ("a file is missing", "node1 has no /data/part-7", 2)
    assert "software.container.binds" in found.next


@pytest.mark.parametrize("signal", ["SIGABRT", "SIGTERM"])
def test_what_may_be_a_consequence_is_the_cause_of_none_but_lost_connections(run: RunDirectory, signal: str) -> None:
    """NCCL's watchdog aborts a rank that waited in vain; Slurm and torchrun tell ranks to end."""
    died(run, 3, signal, LATER_S - 3)
    for rank in (0, 1, 2):
        raised(run, rank, LOST)
    assert failure_of(run).why == f"rank 3 (node 1, node1): ended by {signal}"
    raised(run, 1, "ValueError: bad batch", LATER_S)
    assert failure_of(run).why == "rank 1: ValueError: bad batch"


def test_a_rank_that_left_well_is_the_cause_of_one_that_waited_and_was_aborted(run: RunDirectory) -> None:
    ended_at_s = read_json(run.ranks / "rank0.json")["ended_at_s"]
    died(run, 3, "SIGABRT", ended_at_s + 1)  # in taking down what it has, after all had trained
    assert failure_of(run).verdict == "a rank aborted"
    died(run, 3, "SIGABRT", ended_at_s + 600)
    edit(run.agent_end(Agent(1)), lambda end: end["failed_ranks"].pop(0))
    found = failure_of(run)
    assert found.verdict == "a rank left the others"
    assert "rank 3 was aborted" in found.why


@pytest.mark.parametrize("with_its_ranks", [False, True])
def test_a_launcher_that_was_killed(run: RunDirectory, with_its_ranks: bool) -> None:
    for rank in range(4) if with_its_ranks else (2, 3):
        (run.ranks / f"rank{rank}.json").unlink()
    if not with_its_ranks:
        raised(run, 0, LOST)
    edit(run.agent_end(Agent(1)), lambda end: end.update(exit_code=-9, signal="SIGKILL"))
    found = failure_of(run)
    assert (found.verdict, found.why) == (
        "a launcher was killed",
        "the launcher of node 1 (node1): ended by SIGKILL",
    )
    assert "dmesg" in found.next


def test_a_node_that_is_gone(run: RunDirectory) -> None:
    for rank in (2, 3):
        (run.ranks / f"rank{rank}.json").unlink()
    run.agent_end(Agent(1)).unlink()
    raised(run, 0, LOST)
    found = failure_of(run)
    assert found.verdict == "a node was lost"
    assert found.why.startswith("node 1 (node1) left no end record: its agent was killed, or the node is gone; rank 0 ")
    assert "slurm.exclude in cluster.yaml" in found.next


def test_a_node_that_is_gone_before_the_others_missed_it(run: RunDirectory) -> None:
    """Slurm tells the other agents to end at once: they are no cause."""
    for rank in range(4):
        (run.ranks / f"rank{rank}.json").unlink()
    run.agent_end(Agent(1)).unlink()
    edit(run.agent_end(Agent(0)), lambda end: end.update(exit_code=-15, signal="SIGTERM"))
    found = failure_of(run)
    assert (found.verdict, found.node) == ("a node was lost", "node1")
    assert found.why.endswith("or the node is gone; the others were then ended by SIGTERM")


def test_an_exit_code_without_an_end_record_is_explained_by_the_last_words(run: RunDirectory) -> None:
    died(run, 3, None, code=3)
    run.agent_log(Agent(1), 2).write_text("done\ndataset is missing\n")
    found = failure_of(run)
    assert found.verdict == "the script failed"
    said = "the last line that was printed: dataset is missing"
    assert found.why == f"rank 3 (node 1, node1): exit code 3, without an end record; {said}"
