"""Which agent describes its node, and when. What it writes: tests/unit/nodes/test_describe.py."""

from __future__ import annotations

from pathlib import Path

from ddp_ladder.common.files import Agent, RunDirectory
from ddp_ladder.nodes.describe import read_machines
from ddp_ladder.run.monitoring import started_description
from make_records import make_spec
from make_runs import edit, write_run


def is_described_by(directory: RunDirectory, agent: Agent) -> bool:
    thread = started_description(directory, agent, "lo")
    if thread is not None:
        thread.join(30)
    return thread is not None


def test_the_first_agent_of_each_node_describes_it_once_per_job(tmp_path: Path) -> None:
    directory = write_run(tmp_path, make_spec("2x2", launcher="srun"), agents_per_node=2)
    agents = [Agent(node_rank, local_rank) for node_rank in (0, 1) for local_rank in (0, 1)]
    assert [is_described_by(directory, agent) for agent in agents] == [True, False, True, False]
    assert not any(is_described_by(directory, agent) for agent in agents)
    edit(directory.run, lambda run: run["job"].update(id="later"))
    assert is_described_by(directory, agents[0])
    (nodes,) = read_machines(tmp_path).values()
    assert [machine.job_id == "later" for machine in nodes] == [True, False]


def test_of_nodes_that_are_simulated_the_first_describes_their_machine(tmp_path: Path) -> None:
    directory = write_run(tmp_path, make_spec("2x1"))
    edit(directory.run, lambda run: run.update(nodes=["here", "here"]))
    assert [is_described_by(directory, Agent(node_rank)) for node_rank in (0, 1)] == [True, False]


def test_a_preflight_and_a_run_outside_of_the_results_describe_nothing(tmp_path: Path) -> None:
    directory = write_run(tmp_path, make_spec("1x1"))
    directory.path.rename(tmp_path / "elsewhere")
    assert not is_described_by(RunDirectory(tmp_path / "elsewhere"), Agent(0))
    (tmp_path / "elsewhere").rename(directory.path)
    edit(directory.run, lambda run: run.update(is_preflight=True))
    assert not is_described_by(directory, Agent(0))
