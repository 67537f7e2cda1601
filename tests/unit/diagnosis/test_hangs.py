"""The rank that the others waited for, from the reports of the agents, and what it was doing, from its stack."""

from __future__ import annotations

from typing import Any

import pytest
from ddp_ladder.diagnosis.hangs import (
    doing,
    hang_failure,
    in_collective,
    is_at_work,
    lagging,
    main_stack,
    of_script,
    stalled,
    without_own,
)
from ddp_ladder.records.raw_models import AgentStall, RankStall, Unreached
from make_stalls import agent_stall, rank_stall

STACKS = "nodes/hang-*.json"
SLEEPS = 'Current thread 0x01 (most recent call first):\n  File "train.py", line 7 in train'
WAITS = """Current thread 0x01 (most recent call first):
  File "/site-packages/torch/distributed/distributed_c10d.py", line 5320 in barrier
  File "train.py", line 21 in validate"""

JOINS = {"steps": 0, "phase": "starting", "stack": WAITS.replace("barrier", "init_process_group")}
REDUCES = WAITS.replace("barrier", "all_reduce")


def rank(number: int, **changes: Any) -> RankStall:
    return rank_stall(number, **{"stack": WAITS, **changes})


def reports(*ranks: RankStall) -> list[AgentStall]:
    """One report for each node of two ranks."""
    return [agent_stall(node, *ranks[2 * node : 2 * node + 2]) for node in range((len(ranks) + 1) // 2)]


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        ([rank(0), rank(1, phase="ended", steps=11)], [1]),
        ([rank(0, phase="ended", stack=None), rank(1, phase="between passes", stack=SLEEPS)], [1]),
        ([rank(0, phase="ended", stack=None), rank(1, phase="between passes")], [0]),  # in a barrier
        ([rank(0, phase="ended", stack=None), rank(1, stack=SLEEPS)], [0]),  # on a GPU, the line may wait for others
        ([rank(0), rank(1), rank(2), rank(3, stack=SLEEPS)], [3]),
        ([rank(0, stack=SLEEPS), rank(1, stack=SLEEPS, steps=11), rank(2)], [1]),
        ([rank(0, steps=11), rank(1, stack=SLEEPS)], [1]),  # in no collective: that is what the other waits for
        ([rank(0), rank(1, sequence=19)], [1]),
        ([rank(0, sequence=None), rank(1, sequence=None, steps=11)], [1]),
        ([rank(0), rank(1), rank(2, stack=REDUCES), rank(3, steps=11)], [2]),
        ([rank(0), rank(1), rank(2, stack=REDUCES, sequence=22)], [2]),  # it left the barrier out, and is ahead
        ([rank(0), rank(1, stack=REDUCES, sequence=22)], []),
        ([rank(0, handles="KeyError: 'x'"), rank(1, stack=REDUCES)], [0]),  # in a finally
        ([rank(0), rank(1, stack=REDUCES, steps=11)], []),  # which of the two is wrong, is not known
        ([rank(0, stack=SLEEPS), rank(1, stack=SLEEPS)], []),
        ([rank(0, stack=SLEEPS)], [0]),
    ],
)
def test_the_rank_that_the_others_wait_for(ranks: list[RankStall], named: list[int]) -> None:
    assert [one.stall.rank for one in lagging(stalled(reports(*ranks)))] == named


def unreached(report: AgentStall, nodes: set[int], cut: list[tuple[int, int]]) -> AgentStall:
    """Return the report of an agent that tested all other nodes, and did not reach some."""
    others = [other for node, other in cut if node == report.node_rank]
    missed = tuple(Unreached(node_rank=other, why="timed out") for other in others)
    return report.replace(tested=tuple(sorted(nodes - {report.node_rank})), unreached=missed)


@pytest.mark.parametrize(
    ("cut", "ways", "node"),
    [
        ([(1, 0)], "from node 1 (node1) to node 0 (node0) (timed out)", "node1"),
        (
            [(1, 0), (2, 0)],
            "from node 1 (node1) to node 0 (node0) (timed out), from node 2 (node2) to node 0 (node0) (timed out)",
            "node0",
        ),
        ([(1, 2), (2, 1)], "from node 2 (node2) to node 1 (node1) (timed out)", "node2"),
        (
            [(0, 2), (1, 2), (2, 0)],
            "from node 2 (node2) to node 0 (node0) (timed out), from node 1 (node1) to node 2 (node2) (timed out)",
            "node2",
        ),
        ([(0, 1), (0, 2), (1, 2), (2, 1)], None, None),  # ports that a firewall closes
    ],
)
def test_nodes_that_do_not_reach_each_other_are_the_cause(
    cut: list[tuple[int, int]], ways: str | None, node: str | None
) -> None:
    """Whatever the ranks' stacks show."""
    whole = reports(*map(rank, range(5)), rank(5, stack=SLEEPS))
    failure = hang_failure([unreached(report, {0, 1, 2}, cut) for report in whole], STACKS)
    assert (failure.verdict == "nodes are cut off from each other") == (ways is not None)
    if ways is not None:
        assert failure.why == f"no connection {ways}; no rank made progress for 1 min 02 s"
        assert (failure.node, failure.rank, failure.at_s) == (node, None, 1000.0 - 62.0)


@pytest.mark.parametrize("cut", [[(1, 3), (2, 3)], [(0, 1), (0, 2), (1, 2), (2, 1), (1, 3), (2, 3)]])
def test_a_node_that_does_not_report_is_named_unless_nobody_reaches_any_node(cut: list[tuple[int, int]]) -> None:
    """It is node 3. Where only the head is reached, the nodes have a firewall."""
    whole = reports(*map(rank, range(6)))
    several = [unreached(report, {0, 1, 2, 3} if report.node_rank else {0, 1, 2}, cut) for report in whole]
    assert ("to node 3" in hang_failure(several, STACKS).why) == (len(cut) == 2)


def test_of_ranks_in_different_collectives_a_line_in_each_is_shown() -> None:
    shown = hang_failure(reports(rank(0), rank(1), rank(2, stack=REDUCES), rank(3, stack=REDUCES)), STACKS).evidence
    assert [line.speaker for line in shown] == ["rank 0 on node0", "rank 2 on node1"]


def test_it_is_named_with_its_node_and_its_line() -> None:
    failure = hang_failure(reports(rank(0), rank(1), rank(2), rank(3, stack=SLEEPS, sequence=19)), STACKS)
    assert failure.verdict == "the training hung"
    assert failure.why == (
        'rank 3 (node 1, node1) after 12 steps: File "train.py", line 7, in train; ranks 0-2 waited in barrier(); '
        "no rank made progress for 1 min 02 s"
    )
    assert f"the stacks of all ranks are in {STACKS}" in failure.next
    assert failure.next.splitlines()[-1].startswith("if it was no hang, raise hang.at_least_s")
    assert (failure.rank, failure.node, failure.at_s) == (3, "node1", 1000.0 - 62.0)
    assert [(line.speaker, line.line) for line in failure.evidence] == [
        ("rank 3 on node1", 'File "train.py", line 7, in train'),
        ("rank 0 on node0", 'File "train.py", line 21, in validate'),
    ]


@pytest.mark.parametrize(
    ("ranks", "verdict", "why", "next_step"),
    [
        (
            [rank(k, steps=0, phase="starting", step_s=None, stack=SLEEPS) for k in range(2)], "no first step",
            "line 7, in train; rank 1 (node 0, node0) after 0 steps", "none is in a collective call: see why they",
        ),
        (
            [rank(k, **JOINS) for k in range(2)],
            "no first step",
            "in init_process_group(); rank 1",
            "without rank and world size",
        ),
        (
            [rank(0, **JOINS, own_rendezvous="localhost:29500"), rank(1, stack=SLEEPS, steps=0, phase="starting")],
            "no first step", "line 7, in train; rank 0 waited in init_process_group()", "see why it does not go on",
        ),
        (
            [rank(0, handles="KeyError: 'x'"), rank(1, stack=REDUCES)], "a rank that fails waits for the others",
            "in validate, in barrier(), while it handled KeyError: 'x'; rank 1 waited in all_reduce()",
            "fix what raised",
        ),
        (
            [rank(0), rank(1, phase="ended", steps=11)], "a rank left the others", "its script ended after 11 steps",
            "let every rank make the same number of steps",
        ),
        (
            [rank(0), rank(1, phase="ended", stack=None)], "a rank left the others",
            "its script ended after 12 steps; rank 0 waited in barrier()",
            "let every rank make the same collective calls",
        ),
        (
            [rank(0, phase="ended", stack=None), rank(1, phase="between passes", stack=SLEEPS)], "the training hung",
            'rank 1 (node 0, node0) after 12 steps: File "train.py", line 7, in train; '
            "rank 0 (node 0, node0): its script ended after 12 steps; no rank", "see why it does not go on",
        ),
        (
            [rank(0, phase="ended", stack=None), rank(1, phase="ended")], "the processes did not end",
            "rank 0 (node 0, node0): its script ended after 12 steps", "_shutdown",
        ),
        (
            [rank(0, phase="ended", process="gone", stack=None), rank(1, phase="ended", stack=SLEEPS)],
            "the processes did not end",
            'rank 1 (node 0, node0): its script ended after 12 steps; then File "train.py", line 7, in train; no rank',
            "_shutdown",
        ),
        ([rank(0), rank(1)], "the training hung", "in barrier(); rank 1 (node 0", "network.interface"),
        (
            [rank(0), rank(1, stack=REDUCES)], "the ranks are in different collectives",
            'after 12 steps: File "train.py", line 21, in validate, in all_reduce()', "same collective calls",
        ),
        (
            [rank(0), rank(1, stack=None, process="uninterruptible")], "the training hung",
            "it left no stack (uninterruptible)", "see why",
        ),
    ],
)  # fmt: skip
def test_each_hang_has_its_verdict(ranks: list[RankStall], verdict: str, why: str, next_step: str) -> None:
    failure = hang_failure(reports(*ranks), STACKS)
    assert failure.verdict == verdict
    assert why in failure.why
    assert next_step in failure.next


# Stacks, as faulthandler prints them


TORCH = "/site/lib/python3.11/site-packages/torch"
BACKWARD = f"""Stack (most recent call first):
  File "{TORCH}/autograd/graph.py", line 1072 in _engine_run_backward
  File "{TORCH}/autograd/__init__.py", line 395 in backward
  File "/checkout/workflow/scripts/ddp_ladder_instrument/backwards.py", line 54 in backward
  File "{TORCH}/_tensor.py", line 623 in backward
  File "/home/me/train.py", line 19 in <module>
  File "/checkout/workflow/scripts/ddp_ladder_instrument/program.py", line 98 in _run_file
  File "/checkout/workflow/scripts/instrument.py", line 26 in <module>"""
BARRIER = f"""Stack (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 5320 in barrier
  File "{TORCH}/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/train.py", line 21 in validate
  File "/home/me/train.py", line 40 in <module>"""
LOADER = """Stack (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 415 in select
  File "/usr/lib/python3.11/multiprocessing/connection.py", line 947 in wait
  File "/site/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1255 in _try_get_data
  File "/home/me/train.py", line 12 in train_and_evaluate"""
MAIN_ALONE = """Stack (most recent call first):
  File "/home/me/train.py", line 7 in wait_for_ever
  File "/home/me/train.py", line 19 in <module>"""


def saving(function: str, file: str = "/home/me/train.py") -> str:
    return f'Stack (most recent call first):\n  File "{file}", line 7 in {function}'


def test_the_last_of_two_answers_counts() -> None:
    assert main_stack(f"{BACKWARD}\n{MAIN_ALONE}") == main_stack(MAIN_ALONE)
    assert main_stack("") == []


@pytest.mark.parametrize(
    ("text", "waits", "place", "what"),
    [
        (BACKWARD, True, 'File "/home/me/train.py", line 19, in <module>', "in backward()"),
        (BARRIER, True, 'File "/home/me/train.py", line 21, in validate', "in barrier()"),
        (
            LOADER,
            False,
            'File "/home/me/train.py", line 12, in train_and_evaluate',
            "waiting for a batch of its DataLoader",
        ),
        (MAIN_ALONE, False, 'File "/home/me/train.py", line 7, in wait_for_ever', ""),
    ],
    ids=["backward", "barrier", "loader", "alone"],
)
def test_what_a_rank_was_doing(text: str, waits: bool, place: str, what: str) -> None:
    stack = main_stack(text)
    assert (in_collective(stack), of_script(stack)[0].text, doing(stack)) == (waits, place, what)


@pytest.mark.parametrize(
    ("text", "busy"),
    [
        (saving("save_checkpoint"), True),
        (saving("validate"), True),
        (saving("_save", f"{TORCH}/serialization.py"), True),
        (saving("_convert_frame", f"{TORCH}/_dynamo/convert_frame.py"), True),
        (saving("checkpoint", f"{TORCH}/utils/checkpoint.py"), False),  # recomputes activations, inside a step
        (saving("train_and_evaluate"), False),  # the whole training may be in it
        (LOADER, False),
    ],
)
def test_a_rank_that_saves_validates_or_compiles_is_at_work(text: str, busy: bool) -> None:
    assert is_at_work(main_stack(text)) == busy


def test_the_instruments_own_frames_are_left_out() -> None:
    shown = without_own(BACKWARD)
    assert "instrument" not in shown
    assert main_stack(shown) == [frame for frame in main_stack(BACKWARD) if "instrument" not in frame.file]
