"""Signs of life: of a node, a file that its first agent touches; of ranks, their heartbeats and the sums of these.

The job sees by its own clock whether a file changes: the clocks of nodes and of network file systems differ. An agent
deletes its file after it has written its end record. No run is ended for silence while rank 0 goes on making steps.
No rank touches a shared file system while it trains: heartbeats stay on their node.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from ddp_ladder_instrument.contract import HEARTBEAT

from ddp_ladder.common.files import (
    HANG,
    SIGN,
    Agent,
    NotWritten,
    RunDirectory,
    file_text,
    read_json,
    readable,
    scanned,
    touched_s,
    write_json,
)
from ddp_ladder.common.process import ProcessId, start_allowance_s
from ddp_ladder.records.raw_models import AgentEnd, AgentTotals, RankTotals, RunFile, SilentAgent
from ddp_ladder.run.hangs import SUSPENDED_S, Files, look_interval_s, read_heartbeat
from ddp_ladder.run.interruption import TimedWarning

BEAT_S = 5.0
SILENT_AFTER_S = 45.0  # a busy node or file system may be this late; before the first step, start_allowance_s later
FIRST_AFTER_S = 300.0  # for the start of a job step and of a Python, also while the job step before still ends
LOOK_S = 5.0


@contextmanager
def sign_of_life(path: Path) -> Iterator[None]:
    """Touch this file every few seconds, from a thread, until the end of the block; then delete it."""
    end = threading.Event()
    thread = threading.Thread(target=_beat, args=(path, end), daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(BEAT_S)
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _beat(path: Path, end: threading.Event) -> None:
    while True:
        with suppress(OSError):  # the next one may succeed
            path.touch()
        if end.wait(BEAT_S):
            return


class SignsOfLife:
    """The directory of the agents' files, which the run's job scans once for each look."""

    def __init__(self, directory: RunDirectory, run: RunFile) -> None:
        self._directory, self._agents = directory, run.all_agents
        self._every_s = LOOK_S if run.hang is None else min(LOOK_S, look_interval_s(run.hang))
        self._firsts = [agent for agent in self._agents if agent.is_first]
        self._allowance_s = start_allowance_s(len(self._firsts))
        self._signs: dict[Agent, float] = {}
        self._addresses: dict[int, str] = {}
        self._listed = 0  # addresses in their file
        self._step: int | None = None  # of rank 0
        self._next_s = 0.0
        self._over_since_s: float | None = None
        self.files: Files = {}  # with the state of signs and reports
        self.silent: tuple[SilentAgent, ...] = ()  # they have neither ended nor given a sign for long
        self.ends: dict[Agent, AgentEnd] = {}  # the end records so far
        self.is_overdue = False  # srun goes on for long after all agents have ended, or one has failed
        self.restart()

    def restart(self) -> None:
        """Count silence from now on."""
        self._began_s = self._stepped_s = now_s = time.monotonic()  # the last agent, the last step
        self._changed_s = dict.fromkeys(self._firsts, now_s)
        self.silent = ()

    def look(self) -> None:
        """Look at the files, if it is time for it."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        if self._next_s and now_s > self._next_s + SUSPENDED_S:
            self.restart()  # the job was suspended with its agents, or its file system did not answer
        try:
            self.files = scanned(self._directory.nodes, (SIGN, HANG))
            self._follow_steps(now_s)
            for agent in self._agents:
                if agent not in self.ends and self._directory.agent_end(agent).name in self.files:
                    self._read_end(agent)
            for agent in self._firsts:
                self._see(agent, now_s)
            silent = [end for agent in self._firsts if (end := self._silent(agent, now_s))]
            if silent and not os.access(self._directory.nodes, os.W_OK):
                raise OSError("read-only: no agent can touch its file")
        except OSError:  # the job itself cannot look
            self.restart()
            silent = []
        self._list_addresses()
        self.silent, self._next_s = tuple(silent), time.monotonic() + self._every_s
        over = len(self.ends) == len(self._agents) or any(end.failed for end in self.ends.values())
        self._over_since_s = (self._over_since_s or now_s) if over else None
        self.is_overdue = self._over_since_s is not None and now_s - self._over_since_s >= SILENT_AFTER_S

    @property
    def orphan(self) -> tuple[Agent, AgentEnd] | None:
        """An agent whose parent, under Slurm its step daemon, had died before it ended."""
        return next(((agent, end) for agent, end in self.ends.items() if end.orphaned), None)

    def _follow_steps(self, now_s: float) -> None:
        with suppress(OSError, ValueError, KeyError, TypeError):  # it shows none yet
            step = read_json(self._directory.progress)["step"]
            if step != self._step:
                self._step, self._stepped_s = step, now_s

    def _see(self, agent: Agent, now_s: float) -> None:
        """Note the sign of a node, if the scan has a new one, and its address."""
        sign = self._directory.sign(agent.node_rank)
        state = self.files.get(sign.name)
        if state is None:
            return
        if agent not in self._signs:
            self._began_s = now_s
        if self._signs.get(agent) != state.st_mtime:
            self._signs[agent], self._changed_s[agent] = state.st_mtime, now_s
        if agent.node_rank not in self._addresses and (address := file_text(sign)):
            self._addresses[agent.node_rank] = address

    def _silent(self, agent: Agent, now_s: float) -> SilentAgent | None:
        """Return a node's agent if it is silent. Raises OSError if that cannot be seen."""
        has_begun, sign = agent in self._signs, self._directory.sign(agent.node_rank)
        if agent in self.ends or (has_begun and sign.name not in self.files):
            return None  # it has ended: here its end record may be seen later than that
        allowance_s = 0.0 if self._step else self._allowance_s  # later, all have loaded their libraries
        limit_s = (SILENT_AFTER_S if has_begun else FIRST_AFTER_S) + allowance_s
        since_s = self._changed_s[agent]
        if now_s - max(self._stepped_s, since_s if has_begun else self._began_s) < limit_s:
            return None  # or the training goes on, or the start of further agents
        with suppress(FileNotFoundError):
            if has_begun and (touch_s := touched_s(sign)) != self._signs[agent]:  # the scan's time of it was an old one
                self._signs[agent], self._changed_s[agent] = touch_s, now_s
                return None
        self._read_end(agent)  # it may have been killed before it could delete its file
        if agent in self.ends:
            return None
        return SilentAgent(
            node_rank=agent.node_rank, local_rank=agent.local_rank, silent_s=now_s - since_s, has_begun=has_begun
        )

    def _list_addresses(self) -> None:
        """Write the addresses of all nodes, if there are new ones: each agent would read a file of each other one."""
        if len(self._addresses) > self._listed and len(self._firsts) > 1:
            with suppress(OSError):
                write_json(self._directory.addresses, self._addresses)
                self._listed = len(self._addresses)

    def _read_end(self, agent: Agent) -> None:
        if end := readable(AgentEnd, self._directory.agent_end(agent)):
            self.ends[agent] = end


MEMORY = Path("/dev/shm")
PREFIX = "ddp-ladder-"
OWNER = "agent.json"


def heartbeat_places(in_container: bool, nodes: Path) -> tuple[Path, ...]:
    """Return where it may be, the best place first. nodes: the directory of the run's agents.

    A container may have a /tmp of its own, in which nothing can be bound. It can bind the whole of /dev/shm.
    """
    return (MEMORY, nodes) if in_container else (MEMORY, Path(tempfile.gettempdir()), nodes)


def make_heartbeats(places: Sequence[Path]) -> Path:
    """Make it in the first place that can be written; remove those of agents that were killed. Raises NotWritten."""
    for place in places:
        with suppress(OSError):
            _remove_left(place)
            made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
            try:
                write_json(made / OWNER, asdict(ProcessId.own()))
            except OSError:
                shutil.rmtree(made, ignore_errors=True)
                continue
            return made
    raise NotWritten(None, "no directory for heartbeats can be made", str(places[-1]))


def _remove_left(place: Path) -> None:
    for owner in place.glob(f"{PREFIX}*/{OWNER}"):
        with suppress(OSError, ValueError, TypeError):  # it ends just now
            if owner.stat().st_uid == os.getuid() and ProcessId(**read_json(owner)).is_alive() is False:
                shutil.rmtree(owner.parent)


# --- The sums of an agent's ranks while they run: it reads their heartbeats on its node, and writes one small file.


JOIN_S = 5.0
FIRST_EVERY_S = 5.0  # until a rank trains


class TotalsWriter:
    """A thread of the agent. It also looks whether the job wants the ranks to be warned now."""

    def __init__(
        self, directory: RunDirectory, heartbeats: Path, run: RunFile, agent: Agent, warning: TimedWarning
    ) -> None:
        self._directory, self._run, self._agent, self._warning = directory, run, agent, warning
        self._files = {rank: heartbeats / HEARTBEAT.format(rank) for rank in run.ranks_of(agent)}
        self._has_written = False
        self._asked_ns = 0  # when the job asked for the last warning
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._write_until_end, name="totals", daemon=True)

    @classmethod
    def started(
        cls, directory: RunDirectory, heartbeats: Path, run: RunFile, agent: Agent, warning: TimedWarning
    ) -> TotalsWriter | None:
        """Return the writer of an agent, started; None if the run wants none."""
        if run.totals_every_s is None:
            return None
        writer = cls(directory, heartbeats, run, agent, warning)
        writer._thread.start()
        return writer

    def end(self) -> None:
        """Write the last sums, and end the thread."""
        self._end.set()
        self._thread.join(JOIN_S)

    def _write_until_end(self) -> None:
        is_over, every_s = False, self._run.totals_every_s
        assert every_s is not None  # or there is no writer
        while not is_over:
            is_over = self._end.wait(every_s if self._has_written else min(every_s, FIRST_EVERY_S))
            with suppress(OSError):  # the next one may succeed
                self._write()
                if not is_over and (asked_ns := self._directory.warn_now.stat().st_mtime_ns) != self._asked_ns:
                    self._asked_ns = asked_ns
                    self._warning.warn()

    def _write(self) -> None:
        ranks = []
        for rank, path in self._files.items():
            with suppress(OSError, ValueError):  # none yet, or read while it was being written
                if (totals := read_heartbeat(path).totals) is not None:
                    ranks.append(RankTotals(rank=rank, totals=totals))
        file = AgentTotals(**self._run.identity, ranks=tuple(ranks))
        write_json(self._directory.totals(self._agent), file.model_dump())
        self._has_written = bool(ranks)
