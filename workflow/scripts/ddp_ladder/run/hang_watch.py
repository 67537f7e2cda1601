"""The hang watch: each agent looks at its ranks and reports if none goes on; the job ends a run in which no rank does.

An agent knows its own node only, and its ranks may wait for a validation on another one. So it reports a stall, with
the stacks of its ranks, and takes the report back if they go on. The job calls it a hang if every agent that has not
ended reports one.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from ddp_ladder.common.files import Agent, RunDirectory, write_json
from ddp_ladder.common.messages import printable
from ddp_ladder.node.network import node_name
from ddp_ladder.plan.hang import HangBounds
from ddp_ladder.records.hang_models import AgentStall, Heartbeat, ProcessState, RankStall, is_stuck, read_stalls
from ddp_ladder.records.raw_models import RunFile, read_run_file
from ddp_ladder.records.stacks import without_own
from ddp_ladder.run.hang_judgement import Seen, State, bound_s, is_suspect, judge
from ddp_ladder.run.rank_processes import HEADER_BYTES, RankProcess, find, stacks

LONGEST_INTERVAL_S = 5.0  # between two looks at the heartbeats
SUSPENDED_S = 10.0  # a look that comes this late: the job was suspended, with all its processes
STACK_CHARACTERS = 20_000  # of a rank in a report
AGAIN = 1.5  # ranks that go on are looked at again after this many times their silence
BEATS_S = 2.5  # two beats of a heart, and some more
CLOCK_S = 0.001  # a difference of times that is none
JOIN_S = 20.0  # for a look that is under way when the agent ends
JOB_INTERVAL_S = 1.0  # between two looks at the reports


class HangWatch:
    """The watch of one agent: a thread. ``reports`` is True while it reports that no rank goes on."""

    def __init__(self, directory: RunDirectory, run: RunFile, bounds: HangBounds, agent: Agent) -> None:
        self._run, self._bounds, self._agent = run, bounds, agent
        self._files = {rank: directory.heartbeat(rank) for rank in ranks_of(run, agent)}
        self._report = directory.hang(agent)
        self._heartbeats: dict[int, Heartbeat] = {}
        self._begin_s = time.monotonic()  # silence before does not count
        self._next_s = 0.0  # least silence for the next look at processes and stacks
        self._moved_s = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look_until_end, daemon=True)
        self.reports = False

    @classmethod
    def started(cls, directory: RunDirectory, agent: Agent) -> HangWatch | None:
        """Return the watch of an agent, started; None if the run has none."""
        run = read_run_file(directory)
        if run.hang is None:
            return None
        watch = cls(directory, run, run.hang, agent)
        watch._thread.start()
        return watch

    def freeze(self) -> None:
        """Look no more: the agent ends its ranks."""
        self._end.set()

    def end(self, keep_report: bool) -> None:
        """End the thread and delete the heartbeats, and the report unless it is the reason for the end."""
        self.freeze()
        self._thread.join(JOIN_S)
        with contextlib.suppress(OSError):
            for path in (*self._files.values(), *(() if keep_report else (self._report,))):
                path.unlink(missing_ok=True)

    def _look_until_end(self) -> None:
        interval_s = min(LONGEST_INTERVAL_S, self._bounds.at_least_s / 4)
        due_s = time.monotonic() + interval_s
        while not self._end.wait(interval_s):
            now_s = time.monotonic()
            if now_s > due_s + SUSPENDED_S:
                self._begin_s = now_s
            # A run does not end because its watch fails: the next look may succeed.
            with contextlib.suppress(OSError, ValueError, psutil.Error):
                self._look(now_s)
            due_s = time.monotonic() + interval_s

    def _look(self, now_s: float) -> None:
        """Look at the heartbeats; if all ranks are silent, also at their processes and stacks."""
        seen = {rank: self._seen(rank, now_s) for rank in self._files}
        moved_s = max(now_s - one.silent_s for one in seen.values())
        if moved_s > self._moved_s:
            self._moved_s, self._next_s = moved_s, 0.0
            self._take_back()
        if not all(is_suspect(one, self._bounds) for one in seen.values()):
            return
        silent_s = now_s - moved_s
        if silent_s < self._next_s:
            return
        self._next_s = AGAIN * silent_s
        seen = self._with_stacks(seen)
        states = {rank: judge(one, self._bounds) for rank, one in seen.items()}
        # A rank writes its heartbeat a second late: it may have gone on just before its stack was taken.
        if self._end.wait(BEATS_S) or self._moved_since(moved_s):
            return  # or the ranks are being ended: what was seen just now is not why
        if State.GOES_ON in states.values():
            self._take_back()
        else:
            self._write(seen, states)

    def _moved_since(self, moved_s: float) -> bool:
        """Return True if a heartbeat shows that its rank moved after this time."""
        now_s = time.monotonic()
        return any(now_s - self._seen(rank, now_s).silent_s > moved_s + CLOCK_S for rank in self._files)

    def _seen(self, rank: int, now_s: float) -> Seen:
        with contextlib.suppress(OSError, ValueError):  # none yet, or read while it was being written
            self._heartbeats[rank] = read_heartbeat(self._files[rank])
        heartbeat = self._heartbeats.get(rank)
        moved_s = max(self._begin_s, heartbeat.moved_monotonic_s if heartbeat else 0.0)
        return Seen(
            rank, heartbeat, max(0.0, now_s - moved_s), reports_itself=self._run.spec.throughput_regex is not None
        )

    def _with_stacks(self, seen: Mapping[int, Seen]) -> dict[int, Seen]:
        heartbeats = {rank: one.heartbeat for rank, one in seen.items() if one.heartbeat}
        processes = {rank: process for rank, one in heartbeats.items() if (process := find(one))}
        pids = {rank: process.pid for rank, process in processes.items()}
        texts = stacks(self._files, {rank: (heartbeats[rank], process) for rank, process in processes.items()})
        return {
            rank: one.with_process(_state(one, processes.get(rank)), pids.get(rank), texts.get(rank))
            for rank, one in seen.items()
        }

    def _take_back(self) -> None:
        if self.reports:
            self._report.unlink(missing_ok=True)
            self.reports = False

    def _write(self, seen: Mapping[int, Seen], states: Mapping[int, State]) -> None:
        stall = AgentStall(
            schema_version=1,
            spec_hash=self._run.spec_hash,
            job=self._run.job,
            node_rank=self._agent.node_rank,
            local_rank=self._agent.local_rank,
            node=node_name(),
            host=socket.gethostname(),
            found_at_s=time.time(),
            bounds=self._bounds,
            ranks=tuple(_stall(one, states[rank], self._bounds) for rank, one in seen.items()),
        )
        write_json(self._report, stall.model_dump())
        self.reports = True


def read_heartbeat(path: Path) -> Heartbeat:
    """Read a heartbeat. Raises OSError or ValueError."""
    with path.open("rb") as file:
        return Heartbeat.from_json(json.loads(file.read(HEADER_BYTES)))


def _state(seen: Seen, process: RankProcess | None) -> ProcessState:
    if seen.heartbeat is None:
        return "unknown"
    return process.state if process else "gone"


def _stall(seen: Seen, state: State, bounds: HangBounds) -> RankStall:
    heartbeat, bound = seen.heartbeat, bound_s(seen, bounds)
    return RankStall(
        rank=seen.rank,
        stuck=state is State.STUCK,
        process=seen.process or "unknown",
        pid=seen.pid,
        thread=heartbeat.thread if heartbeat else None,
        phase=heartbeat.phase if heartbeat else None,
        steps=heartbeat.steps if heartbeat else 0,
        step_s=heartbeat.step_s if heartbeat else None,
        silent_s=seen.silent_s,
        bound_s=bound if math.isfinite(bound) else None,
        sequence=heartbeat.sequence if heartbeat else None,
        # faulthandler begins with the youngest thread: the main one is at the end.
        stack=None if seen.stack is None else printable(without_own(seen.stack))[-STACK_CHARACTERS:],
    )


def ranks_of(run: RunFile, agent: Agent) -> tuple[int, ...]:
    """Return the ranks that an agent starts."""
    if run.spec.world_size == 1:
        return (0,)
    first = agent.node_rank * run.spec.gpus_per_node
    if agent.local_rank is not None:
        return (first + agent.local_rank,)
    return tuple(range(first, first + run.spec.gpus_per_node))


class Stalls:
    """The agents' reports, as the run's job reads them."""

    def __init__(self, directory: RunDirectory, agents: Sequence[Agent]) -> None:
        self._directory, self._agents = directory, agents
        self._next_s = 0.0
        self._stuck_since_s: float | None = None

    def is_hang(self) -> bool:
        """Return True if no agent that has not ended has a rank that goes on, and a rank is stuck."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + JOB_INTERVAL_S
        if not any(self._directory.nodes.glob("hang-*.json")):
            self._stuck_since_s = None
            return False
        reports = read_stalls(self._directory, self._agents)
        if not is_stuck(reports.values()):
            return False
        others = (agent for agent in self._agents if agent not in reports)
        if all(self._directory.agent_end(agent).exists() for agent in others):
            return True
        # An agent without a report has a rank that goes on, or hangs with its node: no pause takes longer than this.
        if self._stuck_since_s is None:
            self._stuck_since_s = now_s
        longest_s = next(iter(reports.values())).bounds.first_step_s
        return longest_s is not None and now_s - self._stuck_since_s > longest_s
