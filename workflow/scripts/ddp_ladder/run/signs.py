"""Signs of life of a run's agents: each touches a file of its own, and the job ends a run of which one gives no sign.

The job sees by its own clock whether a file changes: the clocks of nodes and of network file systems differ. An agent
deletes its file after it has written its end record.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ddp_ladder.common.files import Agent, RunDirectory, read_json, touched_s
from ddp_ladder.records.raw_models import AgentEnd, SilentAgent
from ddp_ladder.run.hangs import SUSPENDED_S

BEAT_S = 5.0
SILENT_AFTER_S = 45.0  # a busy node or file system may be this late
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


class Signs:
    """The agents' signs of life, as the run's job sees them.

    silent: agents that have neither ended nor given a sign for long. ends: the end records so far. is_overdue: whether
    srun goes on for long after all agents have ended, or after one has failed.
    """

    def __init__(self, directory: RunDirectory, agents: Sequence[Agent]) -> None:
        self._directory, self._agents = directory, agents
        self._signs: dict[Agent, float] = {}
        self._next_s = 0.0
        self._over_since_s: float | None = None
        self.silent: tuple[SilentAgent, ...] = ()
        self.ends: dict[Agent, AgentEnd] = {}
        self.is_overdue = False
        self.restart()

    def restart(self) -> None:
        """Count silence from now on."""
        self._changed_s = dict.fromkeys(self._agents, time.monotonic())
        self.silent = ()

    def look(self) -> None:
        """Look at the files, if it is time for it."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        if self._next_s and now_s > self._next_s + SUSPENDED_S:
            self.restart()  # the job was suspended with its agents, or its file system did not answer
        try:
            silent = [one for agent in self._agents if (one := self._silent(agent))]
            if silent and not os.access(self._directory.nodes, os.W_OK):
                raise OSError("read-only: no agent can touch its file")
        except OSError:  # the job itself cannot look
            self.restart()
            silent = []
        self.silent, self._next_s = tuple(silent), time.monotonic() + LOOK_S
        over = len(self.ends) == len(self._agents) or any(end.failed for end in self.ends.values())
        self._over_since_s = (self._over_since_s or now_s) if over else None
        self.is_overdue = self._over_since_s is not None and now_s - self._over_since_s >= SILENT_AFTER_S

    @property
    def orphan(self) -> tuple[Agent, AgentEnd] | None:
        """An agent whose parent, under Slurm its step daemon, had died before it ended."""
        return next(((agent, end) for agent, end in self.ends.items() if end.orphaned), None)

    def _silent(self, agent: Agent) -> SilentAgent | None:
        """Look at one agent. Raises OSError if that is not possible."""
        if agent in self.ends:
            return None
        before, now_s = self._signs.get(agent), time.monotonic()
        try:
            self._signs[agent] = touched_s(self._directory.sign(agent))
        except FileNotFoundError:
            self._read_end(agent)
            if before is not None or agent in self.ends:
                return None  # it has ended: here its end record may be seen later than that
        if self._signs.get(agent) != before:
            self._changed_s[agent] = now_s
        silent_s = now_s - self._changed_s[agent]
        if silent_s < (FIRST_AFTER_S if before is None else SILENT_AFTER_S):
            return None
        self._read_end(agent)  # it may have been killed before it could delete its file
        if agent in self.ends:
            return None
        return SilentAgent(
            node_rank=agent.node_rank,
            local_rank=agent.local_rank,
            silent_s=silent_s,
            has_begun=before is not None,
        )

    def _read_end(self, agent: Agent) -> None:
        with suppress(OSError, ValueError):
            self.ends[agent] = AgentEnd.from_json(read_json(self._directory.agent_end(agent)))
