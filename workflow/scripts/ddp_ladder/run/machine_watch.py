"""What a job learns of its nodes: results/machine/<scale>/<node>.

Its preflight describes them, or the agents of its first run, which add where their ranks are bound.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from ddp_ladder.common.files import Agent, RunDirectory
from ddp_ladder.machine.collect import collect
from ddp_ladder.machine.directory import MachineDirectory, remove_others
from ddp_ladder.machine.model import Machine
from ddp_ladder.machine.threads import RankThreads, affinity_text, rank_threads
from ddp_ladder.records.raw_models import RunFile, read_run_file
from ddp_ladder.run.hangs import read_heartbeat

INTERVAL_S = 0.5  # between two looks at the heartbeats, in the beginning
LONGEST_INTERVAL_S = 5.0  # later: the files may be on a file system that all nodes share
SLOWER = 1.1  # so that the interval is the longest after a minute
FIRST_STEPS = 3  # by then torch has started the threads of the backward pass
JOIN_S = 5.0  # for a command that is under way when a short run ends


class MachineWatch:
    """A thread that describes the node, and its ranks' threads once they have made their first steps.

    One agent of each node has it: its first, and of nodes that are simulated on one machine that of the first node.
    It ends by itself as soon as everything is written.
    """

    def __init__(self, results: Path, directory: RunDirectory, run: RunFile, agent: Agent, interface: str) -> None:
        self._results, self._directory, self._run, self._interface = results, directory, run, interface
        self._node = run.nodes[agent.node_rank]
        self._node_rank = agent.node_rank
        self._files = MachineDirectory.of(results, run.spec.scale, self._node)
        self._ranks: dict[int, RankThreads] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="machine", daemon=True)

    @classmethod
    def started(cls, directory: RunDirectory, agent: Agent, interface: str) -> MachineWatch | None:
        """Return the watch, started; None if another agent has it, or this is no run of a scale's job."""
        run = read_run_file(directory)
        results = _results(directory, run)
        if run.is_preflight or results is None or agent.local_rank or not speaks_for_node(run, agent.node_rank):
            return None
        watch = cls(results, directory, run, agent, interface)
        watch._thread.start()
        return watch

    def end(self) -> None:
        """End the thread before the agent ends its processes, and before the heartbeats are deleted."""
        self._end.set()
        self._thread.join(JOIN_S)

    def _work(self) -> None:
        # A run does not fail because its node cannot be described: the job's next run tries again.
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            machine = self._files.read()
            if machine is None or machine.job_id != self._run.job.id:
                machine = self._describe()
            if machine is not None and not machine.ranks:
                self._look_until_end()
                if self._ranks:
                    self._write_affinity(machine)

    def _describe(self) -> Machine | None:
        """Write what the node is made of; None if the run ended meanwhile, and with it the commands."""
        has_gpus = self._run.spec.device == "cuda"
        return describe(self._results, self._run, self._node_rank, self._interface, has_gpus, self._end.is_set)

    def _look_until_end(self) -> None:
        """Look at each rank when it appears and after its first steps, until all have made them or the run ends."""
        ranks, interval_s = self._ranks_of_node(), INTERVAL_S
        while any(self._steps(rank) < FIRST_STEPS for rank in ranks) and not self._end.wait(interval_s):
            for rank, node_rank in ranks.items():
                self._look(rank, node_rank)
            interval_s = min(SLOWER * interval_s, LONGEST_INTERVAL_S)

    def _ranks_of_node(self) -> Mapping[int, int]:
        """Return the node rank of each rank on this node."""
        spec = self._run.spec
        if spec.world_size == 1:
            return {0: 0}
        node_ranks = [node_rank for node_rank, name in enumerate(self._run.nodes) if name == self._node]
        per_node = spec.gpus_per_node
        return {node_rank * per_node + local: node_rank for node_rank in node_ranks for local in range(per_node)}

    def _steps(self, rank: int) -> int:
        return self._ranks[rank].steps if rank in self._ranks else -1

    def _look(self, rank: int, node_rank: int) -> None:
        with contextlib.suppress(OSError, ValueError):  # no heartbeat yet, or read while it was being written
            heartbeat = read_heartbeat(self._directory.heartbeat(rank))
            known = self._steps(rank)
            if known < 0 or known < FIRST_STEPS <= heartbeat.steps:
                run_file = self._directory.run
                threads = rank_threads(rank, node_rank, heartbeat.pid, heartbeat.steps, run_file)
                if threads is not None:
                    self._ranks[rank] = threads

    def _write_affinity(self, machine: Machine) -> None:
        ranks = [self._ranks[rank] for rank in sorted(self._ranks)]
        text = affinity_text(self._run.spec.name, machine.host, ranks)
        summaries = tuple(rank.summary() for rank in ranks)
        self._files.add_affinity(machine.replace(affinity_of=self._run.spec.name, ranks=summaries), text)


def speaks_for_node(run: RunFile, node_rank: int) -> bool:
    """Return True for the first of the nodes with the same name: several are simulated on one machine."""
    return run.nodes.index(run.nodes[node_rank]) == node_rank


def describe(
    results: Path,
    run: RunFile,
    node_rank: int,
    interface: str,
    has_gpus: bool,
    is_over: Callable[[], bool] = lambda: False,
) -> Machine | None:
    """Write what this node is made of. Raises NotWritten.

    is_over: True after the commands if they were ended: then nothing is written, and the result is None.
    """
    node, scale = run.nodes[node_rank], run.spec.scale
    if node_rank == 0:
        remove_others(results, scale, run.nodes)
    machine, texts = collect(run.job.id, str(scale), node, interface, has_gpus, os.environ.copy())
    if is_over():
        return None
    MachineDirectory.of(results, scale, node).replace(machine, texts)
    return machine


def _results(directory: RunDirectory, run: RunFile) -> Path | None:
    """Return the results directory that the run is part of; None for one that was started by hand elsewhere."""
    place = ("runs", *Path(run.spec.name).parts)
    path = directory.path
    return path.parents[len(place) - 1] if path.parts[-len(place) :] == place else None
