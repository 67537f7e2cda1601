"""Which agent describes its node, and when. That the ranks are found is tested in climbs and on Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ddp_ladder.common.files import Agent, RunDirectory
from ddp_ladder.machine.directory import MachineDirectory, read_machines
from ddp_ladder.node.numa import parse_cpus
from ddp_ladder.run.machine_watch import FIRST_STEPS, MachineWatch
from make_records import make_spec
from make_runs import edit, write_run

HEARTBEAT = {
    "thread": 1, "signal": None, "phase": "training", "steps": FIRST_STEPS, "step_s": 0.1, "moved_monotonic_s": 1.0,
    "moved_at_s": 1.0, "sequence": None,
}  # fmt: skip


def is_described_by(directory: RunDirectory, agent: Agent) -> bool:
    watch = MachineWatch.started(directory, agent, "lo")
    if watch is not None:
        watch.end()
    return watch is not None


def test_the_first_agent_of_each_node_describes_it(tmp_path: Path) -> None:
    directory = write_run(tmp_path, make_spec("2x2", launcher="srun"), agents_per_node=2)
    agents = [Agent(node_rank, local_rank) for node_rank in (0, 1) for local_rank in (0, 1)]
    assert [is_described_by(directory, agent) for agent in agents] == [True, False, True, False]


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


def await_thread(watch: MachineWatch) -> None:
    watch._thread.join(30)
    assert not watch._thread.is_alive()


def started(directory: RunDirectory) -> MachineWatch:
    watch = MachineWatch.started(directory, Agent(0), "lo")
    assert watch is not None
    return watch


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[RunDirectory]:
    """A run whose only rank is a process that sleeps, after its first steps as a made heartbeat shows."""
    directory = write_run(tmp_path, make_spec("1x1"))
    environment = {**os.environ, "DDP_LADDER_RUN": str(directory.run)}
    with subprocess.Popen(["sleep", "60"], env=environment) as process:
        text = json.dumps({**HEARTBEAT, "pid": process.pid})
        directory.heartbeat(0).write_text(text.ljust(511) + "\n")
        yield directory
        process.kill()


def test_made_heartbeat_of_a_rank_after_its_first_steps(rank: RunDirectory, tmp_path: Path) -> None:
    """The thread ends by itself; the next run of the job leaves the files alone, and that of a later job does not."""
    await_thread(started(rank))
    ((machine,),) = read_machines(tmp_path).values()
    assert [(seen.rank, seen.steps, seen.threads) for seen in machine.ranks] == [(0, FIRST_STEPS, 1)]
    assert parse_cpus(machine.ranks[0].cpus) == tuple(sorted(os.sched_getaffinity(0)))
    assert machine.affinity_of == "default/weak/1x1/r1"
    await_thread(started(rank))
    assert read_machines(tmp_path) == {"1x1": (machine,)}
    edit(rank.run, lambda run: run["job"].update(id="later"))
    await_thread(started(rank))
    ((later,),) = read_machines(tmp_path).values()
    assert (later.job_id, later.taken_at_s > machine.taken_at_s) == ("later", True)


def test_ranks_that_nobody_saw_are_looked_at_in_the_next_run_of_the_job(rank: RunDirectory, tmp_path: Path) -> None:
    hidden = rank.heartbeat(0).rename(tmp_path / "hidden")
    files = MachineDirectory.of(tmp_path, "1x1", "node0")
    watch = started(rank)
    until_s = time.monotonic() + 30
    while files.read() is None and time.monotonic() < until_s:
        time.sleep(0.01)
    watch.end()
    described = files.read()
    assert described is not None
    assert (described.ranks, files.affinity.exists()) == ((), False)
    hidden.rename(rank.heartbeat(0))
    await_thread(started(rank))
    completed = files.read()
    assert completed is not None
    assert completed.replace(ranks=(), affinity_of=None) == described
    assert len(completed.ranks) == 1
