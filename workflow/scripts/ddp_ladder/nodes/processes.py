"""The processes that the agents of a run started on this node.

A sample may see hundreds of them and thousands of others, so only new processes are looked at to find whose they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import psutil

T = TypeVar("T")


@dataclass(frozen=True)
class ProcessUse:
    """What a process used so far."""

    own_s: float  # CPU time
    waited_s: float  # CPU time of its children that ended, and theirs
    rss_bytes: int

    @classmethod
    def of(cls, process: psutil.Process) -> ProcessUse:
        with process.oneshot():
            times, rss_bytes = process.cpu_times(), process.memory_info().rss
        return cls(times.user + times.system, times.children_user + times.children_system, rss_bytes)


class TrainingProcesses:
    """Finds and measures the descendants of the agents of this run on this node, without the agents themselves."""

    def __init__(self, agent: int, siblings: bool) -> None:
        """agent: its process id. siblings: its parent, Slurm's job step, started the run's other agents here, too."""
        self.agents = {agent}  # ids of processes, as all others
        self.ours: set[int] = set()  # of the training
        self._step = psutil.Process(agent).ppid() if siblings else None
        self._seen = {agent}
        self._used: dict[int, ProcessUse] = {}

    def sample(self) -> tuple[float, int]:
        """Return the CPU seconds since the sample before, and the resident bytes."""
        self._look_for_new()
        used = dict(_each(self.ours | self.agents, ProcessUse.of))
        cpu_s = cpu_between(self._used, used, self.agents)
        self._used = used
        return cpu_s, sum(use.rss_bytes for pid, use in used.items() if pid not in self.agents)

    def _look_for_new(self) -> None:
        pids = {*psutil.pids()}
        new = dict(_each(pids - self._seen, psutil.Process.ppid))
        self.agents |= {pid for pid, parent in new.items() if parent == self._step}
        self.agents &= pids
        self.ours = (self.ours | descendants(self.agents | self.ours, new)) & pids - self.agents
        self._seen = (self._seen | new.keys()) & pids


def descendants(roots: Collection[int], parents: Mapping[int, int]) -> set[int]:
    """Return the processes in parents, a mapping from process to parent, that descend from the roots."""
    known: set[int] = set()
    left = dict(parents)
    while more := {pid for pid, parent in left.items() if parent in roots or parent in known}:
        known |= more
        left = {pid: parent for pid, parent in left.items() if pid not in more}
    return known


def cpu_between(before: Mapping[int, ProcessUse], now: Mapping[int, ProcessUse], agents: Collection[int]) -> float:
    """Return the CPU seconds of the processes between two samples, without the agents' own.

    The time of a child that ended is what its parent waited for, less what was counted while it ran.
    """
    own_s = waited_s = 0.0
    for pid, use in now.items():
        last = before.get(pid)
        own_s += 0.0 if pid in agents else use.own_s - (last.own_s if last else 0.0)
        waited_s += use.waited_s - (last.waited_s if last else 0.0)
    ended_s = sum(use.own_s + use.waited_s for pid, use in before.items() if pid not in now)
    return max(0.0, own_s) + max(0.0, waited_s - ended_s)


def _each(pids: Collection[int], read: Callable[[psutil.Process], T]) -> Iterator[tuple[int, T]]:
    """Yield each process that has not ended, with what is read of it."""
    for pid in pids:
        with suppress(psutil.Error):
            yield pid, read(psutil.Process(pid))
