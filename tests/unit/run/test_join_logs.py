"""train.log of a run with several agents: put together from their parts without holding them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from ddp_ladder.common.files import RunDirectory
from ddp_ladder.run.job import _join_logs


def logs_of(directory: Path, **texts: str) -> RunDirectory:
    run = RunDirectory(directory)
    run.nodes.mkdir(parents=True)
    for name, text in texts.items():
        (run.nodes / f"{name}.log").write_text(text)
    return run


def test_parts_follow_each_other_in_the_order_of_the_nodes(tmp_path: Path) -> None:
    run = logs_of(tmp_path, node0="a\n", node1="", node2="c\n", srun="slow\n")
    _join_logs(run, nodes=3, agents_per_node=1)
    assert run.log.read_text() == "==== srun ====\nslow\n==== node 0 ====\na\n==== node 2 ====\nc\n"


def test_the_log_of_a_single_agent_is_train_log_already(tmp_path: Path) -> None:
    run = logs_of(tmp_path, srun="")
    run.log.write_text("mine\n")
    _join_logs(run, nodes=1, agents_per_node=1)
    assert run.log.read_text() == "mine\n"


def test_long_logs_are_never_held_whole(tmp_path: Path) -> None:
    part = 32 << 20
    run = logs_of(tmp_path)
    for node in (0, 1):
        with (run.nodes / f"node{node}.log").open("wb") as log:
            log.truncate(part)
    tracemalloc.start()
    try:
        _join_logs(run, nodes=2, agents_per_node=1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert run.log.stat().st_size > 2 * part
    assert peak < part // 8
