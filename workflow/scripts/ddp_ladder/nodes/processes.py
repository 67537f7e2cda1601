"""The processes that the agents of a run started on this node, from /proc.

A sample may see hundreds of them and thousands of others, so only new processes are looked at to find whose they are.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Stat:
    """A process in /proc/<pid>/stat. CPU times in seconds; waited: of its children that ended, and theirs."""

    parent: int
    own_s: float
    waited_s: float
    rss_bytes: int


def parse_stat(text: str) -> Stat:
    """Parse /proc/<pid>/stat. Raises ValueError or IndexError."""
    fields = text.rpartition(")")[2].split()  # the process name, in parentheses, may hold spaces
    return Stat(
        parent=int(fields[1]),
        own_s=(int(fields[11]) + int(fields[12])) * _TICK_S,
        waited_s=(int(fields[13]) + int(fields[14])) * _TICK_S,
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
    )


class TrainingProcesses:
    """Finds and measures the descendants of the agents of this run on this node, without the agents themselves.

    agents, ours: ids of the agents, and of the training's processes.
    """

    def __init__(self, agent: int, siblings: bool) -> None:
        """agent: its process id. siblings: its parent, Slurm's job step, started the run's other agents here, too."""
        self.agents = {agent}
        self.ours: set[int] = set()
        self._step = _stat(agent).parent if siblings else None
        self._seen = {agent}
        self._stats: dict[int, Stat] = {}

    def sample(self) -> tuple[float, int]:
        """Return the CPU seconds since the sample before, and the resident bytes. Raises OSError without /proc."""
        self._look_for_new()
        stats = dict(_stats_of(self.ours | self.agents))
        cpu_s = cpu_between(self._stats, stats, self.agents)
        self._stats = stats
        return cpu_s, sum(stat.rss_bytes for pid, stat in stats.items() if pid not in self.agents)

    def _look_for_new(self) -> None:
        pids = {int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()}
        new = {pid: stat.parent for pid, stat in _stats_of(pids - self._seen)}
        self.agents |= {pid for pid, parent in new.items() if parent == self._step}
        self.agents &= pids
        self.ours = (self.ours | descendants(self.agents | self.ours, new)) & pids - self.agents
        self._seen = (self._seen | new.keys()) & pids


def descendants(roots: Collection[int], parents: Mapping[int, int]) -> set[int]:
    """Return the processes in parents, a mapping from process to parent, that descend from the roots."""
    found: set[int] = set()
    left = dict(parents)
    while more := {pid for pid, parent in left.items() if parent in roots or parent in found}:
        found |= more
        left = {pid: parent for pid, parent in left.items() if pid not in more}
    return found


def cpu_between(before: Mapping[int, Stat], now: Mapping[int, Stat], agents: Collection[int]) -> float:
    """Return the CPU seconds of the processes between two samples, without the agents' own.

    The time of a child that ended is what its parent waited for, less what was counted while it ran.
    """
    own_s = waited_s = 0.0
    for pid, stat in now.items():
        last = before.get(pid)
        own_s += 0.0 if pid in agents else stat.own_s - (last.own_s if last else 0.0)
        waited_s += stat.waited_s - (last.waited_s if last else 0.0)
    ended_s = sum(stat.own_s + stat.waited_s for pid, stat in before.items() if pid not in now)
    return max(0.0, own_s) + max(0.0, waited_s - ended_s)


def _stats_of(pids: Collection[int]) -> Iterator[tuple[int, Stat]]:
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):  # it has ended
            yield pid, _stat(pid)


def _stat(pid: int) -> Stat:
    """Read a process's stat, at a third of the cost of Path.read_text."""
    descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return parse_stat(os.read(descriptor, 4096).decode(errors="replace"))
    finally:
        os.close(descriptor)
