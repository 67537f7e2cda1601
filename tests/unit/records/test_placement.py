from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.records.assemble import assemble
from make_records import make_spec
from make_runs import edit, write_run

Change = dict[str, Any]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A good run of three nodes with two GPUs each."""
    return write_run(tmp_path, make_spec("3x2"))


def change_ranks(run: RunDirectory, changed: Callable[[int], Change], ranks: int = 6) -> None:
    for rank in range(ranks):
        edit(run.ranks / f"rank{rank}.json", lambda end, rank=rank: end.update(changed(rank)))


def change_agents(run: RunDirectory, changed: Callable[[int], Change]) -> None:
    for node in range(3):
        edit(run.nodes / f"node{node}.json", lambda end, node=node: end.update(changed(node)))


def failed(run: RunDirectory) -> str:
    record = assemble(run)
    assert [check.name for check in record.checks if not check.ok] == ["placement"]
    assert record.failure
    assert record.failure.verdict == "agents or ranks are not where the job put them"
    assert "srun --label hostname" in record.failure.next
    return record.failure.why


def test_all_agents_on_the_first_node(run: RunDirectory) -> None:
    """What three agents on one machine leave in a job of three nodes."""
    change_agents(run, lambda _: {"node": "node0", "host": "node0"})
    change_ranks(run, lambda _: {"host": "node0"})
    assert failed(run).startswith("node 1 was node0, not node1; node 2 was node0, not node2")


def test_nodes_that_are_one_host(run: RunDirectory) -> None:
    change_agents(run, lambda node: {"host": f"host{min(node, 1)}"})
    change_ranks(run, lambda rank: {"host": f"host{min(rank // 2, 1)}"})
    assert failed(run).startswith("node1, node2 are one host, host1")


def test_simulated_nodes_are_one_host_and_are_called_so(run: RunDirectory) -> None:
    edit(run.run, lambda told: told.update(nodes=["laptop"] * 3))
    change_agents(run, lambda _: {"node": "laptop", "host": "laptop"})
    change_ranks(run, lambda _: {"host": "laptop"})
    assert assemble(run).status == "ok"
    change_agents(run, lambda node: {"node": "laptop", "host": f"laptop{min(node, 1)}"})
    change_ranks(run, lambda rank: {"host": f"laptop{min(rank // 2, 1)}"})
    assert failed(run).startswith("laptop is several hosts: laptop0, laptop1")


def test_a_rank_on_another_host_than_its_agent(run: RunDirectory) -> None:
    change_ranks(run, lambda rank: {"host": "box"} if rank == 3 else {})
    assert failed(run).startswith("rank 3 was on box, where no agent of the run was")


@pytest.mark.parametrize("told", [True, False], ids=["the ladder's number", "c10d's own number"])
def test_ranks_in_another_order_than_the_nodes(run: RunDirectory, told: bool) -> None:
    """What c10d makes of addresses that end in .9, .10 and .11; the group rank that it tells is its own."""
    order = (1, 2, 0)
    change_ranks(
        run,
        lambda rank: {"node_rank": order[rank // 2] if told else rank // 2, "host": f"node{order[rank // 2]}"},
    )
    why = failed(run)
    assert why.startswith("rank 0 was local rank 0 of node 1 (node1), not local rank 0 of node 0 (node0); rank 1 was")
    assert why.endswith("and 3 more")


def test_a_run_file_that_names_other_nodes_than_its_spec_has(run: RunDirectory) -> None:
    edit(run.run, lambda told: told.update(nodes=["node0"]))
    with pytest.raises(ValueError, match="names 1 nodes, its spec has 3"):
        assemble(run)
