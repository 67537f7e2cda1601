"""train.log of a run with several agents: put together from their parts without holding them. NCCL's own logs."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from ddp_ladder.common.files import RunDirectory
from ddp_ladder.records.raw_models import read_run_file
from ddp_ladder.run import run_logs
from ddp_ladder.run.run_logs import join_logs, log_of_agent
from make_records import make_spec
from make_runs import write_run


def logs_of(results: Path, scale: str, **texts: str) -> RunDirectory:
    run = write_run(results, make_spec(scale))
    for name, text in texts.items():
        (run.nodes / f"{name}.log").write_text(text)
    return run


def join(run: RunDirectory) -> None:
    join_logs(run, read_run_file(run))


def test_parts_follow_each_other_in_the_order_of_the_nodes(tmp_path: Path) -> None:
    run = logs_of(tmp_path, "3x1", node0="a\n", node1="", node2="c\n", srun="slow\n")
    join(run)
    assert run.log.read_text() == "==== srun ====\nslow\n==== node 0 ====\na\n==== node 2 ====\nc\n"


def test_the_log_of_a_single_agent_is_train_log_already(tmp_path: Path) -> None:
    run = logs_of(tmp_path, "1x1", srun="")
    run.log.write_text("mine\n")
    join(run)
    assert run.log.read_text() == "mine\n"


def test_the_tail_that_a_killed_agent_left_is_joined_too(tmp_path: Path) -> None:
    run = logs_of(tmp_path, "1x1")
    run.log.write_text("head\n")
    (run.nodes / "tail.node0.5.1").write_text("tail\n")
    join(run)
    assert run.log.read_text() == "head\ntail\n"


def test_the_logs_of_a_node_share_its_limit_with_their_copies(tmp_path: Path) -> None:
    for scale, agents_per_node, copies in (("1x1", 1, 1), ("2x2", 1, 2), ("2x2", 2, 2), ("1x2", 2, 2)):
        spec = make_spec(scale, launcher="srun" if agents_per_node == 2 else "torchrun")
        directory = write_run(tmp_path, spec, agents_per_node=agents_per_node)
        run = read_run_file(directory)
        shares = [log_of_agent(directory, run, agent).max_bytes for agent in run.all_agents]
        assert sum(shares) * copies == 100_000_000 * len(run.nodes)


def test_long_logs_are_never_held_whole(tmp_path: Path) -> None:
    part = 32 << 20
    run = logs_of(tmp_path, "2x1")
    for node in (0, 1):
        with (run.nodes / f"node{node}.log").open("wb") as log:
            log.truncate(part)
    tracemalloc.start()
    try:
        join(run)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert run.log.stat().st_size > 2 * part
    assert peak < part // 8


def test_nccls_logs_are_removed_if_empty_and_cut_if_long(tmp_path: Path) -> None:
    run = logs_of(tmp_path, "1x1")
    run.log.touch()
    empty, short, long = (run.nodes / f"nccl.node7.{pid}.log" for pid in (1, 2, 3))
    empty.touch()
    short.write_text("NCCL WARN Cuda failure\n")
    long.write_text("first\n" + "x" * 3 * run_logs.MOST_OF_NCCL_BYTES + "\nlast\n")
    join(run)
    assert not empty.exists()
    assert short.read_text() == "NCCL WARN Cuda failure\n"
    content = long.read_text()
    assert len(content) <= run_logs.MOST_OF_NCCL_BYTES
    assert content.startswith("first\n")
    assert "bytes are left out here" in content
    assert content.endswith("\nlast\n")
