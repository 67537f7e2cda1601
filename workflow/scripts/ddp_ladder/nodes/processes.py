"""The processes that the agents of a run started on this node, from /proc.

A sample may see hundreds of them and thousands of others, so only new processes are looked at to find whose they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Stat:
    """A process in /proc/<pid>/stat. CPU times in seconds; waited: of its children that ended, and theirs."""

    parent: int
    own_s: float
    waited_s: float
    threads: int
    rss_bytes: int


def parse_stat(text: str) -> Stat:
    """Parse /proc/<pid>/stat. Raises ValueError or IndexError."""
    fields = text.rpartition(")")[2].split()  # the process name, in parentheses, may hold spaces
    return Stat(
        parent=int(fields[1]),
        own_s=(int(fields[11]) + int(fields[12])) * _TICK_S,
        waited_s=(int(fields[13]) + int(fields[14])) * _TICK_S,
        threads=int(fields[17]),
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
    )


@dataclass(frozen=True)
class Training:
    """The training's processes in one sample. CPU and disk since the sample before. None: unknown."""

    cpu_s: float
    read_bytes: int | None
    rss_bytes: int
    private_bytes: int
    processes: int
    threads: int


class TrainingProcesses:
    """Finds and measures the descendants of the agents of this run on this node, without the agents themselves."""

    def __init__(self, agent: int, siblings: bool, proc: Path = PROC) -> None:
        """agent: its process id. siblings: other agents of the run are on this node, started in the same way."""
        self._proc = proc
        self._agent = agent
        self._parent = os.getppid() if agent == os.getpid() else self._stat(agent).parent
        self._command = self._command_line(agent) if siblings else ""
        self._agents = {agent}
        self._ours: set[int] = set()
        self._others: set[int] = set()
        self._stats: dict[int, Stat] = {}
        self._read: dict[int, int] = {}

    @property
    def agents(self) -> frozenset[int]:
        """Process ids of the agents of this run on this node."""
        return frozenset(self._agents)

    def sample(self) -> Training:
        """Return the sums over all processes of the training. Raises OSError if /proc cannot be read."""
        self._look_for_new()
        stats = dict(self._stats_of({*self._ours, *self._agents}))
        read = {pid: size for pid in stats if (size := self._read_bytes(pid)) is not None}
        ours = [stat for pid, stat in stats.items() if pid not in self._agents]
        result = Training(
            cpu_s=cpu_between(self._stats, stats, self._agents),
            read_bytes=_read_between(self._read, read) if read else None,
            rss_bytes=sum(stat.rss_bytes for stat in ours),
            private_bytes=sum(map(self._private_bytes, stats.keys() - self._agents)),
            processes=len(ours),
            threads=sum(stat.threads for stat in ours),
        )
        self._stats, self._read = stats, read
        return result

    def _look_for_new(self) -> None:
        pids = {int(name) for name in os.listdir(self._proc) if name.isdigit()}
        self._others &= pids
        self._ours &= pids
        new = {pid: stat.parent for pid, stat in self._stats_of(pids - self._others - self._ours - self._agents)}
        if self._command:
            self._agents &= pids
            self._agents |= {pid for pid, parent in new.items() if self._is_agent(pid, parent)}
        found = descendants(self._agents | self._ours, new) - self._agents
        self._ours |= found
        # A process with an agent's parent may still become an agent: it is the starter before its exec.
        self._others |= {pid for pid, parent in new.items() if pid not in found and not self._may_be_agent(parent)}

    def _may_be_agent(self, parent: int) -> bool:
        return bool(self._command) and parent == self._parent

    def _is_agent(self, pid: int, parent: int) -> bool:
        return self._may_be_agent(parent) and self._command_line(pid) == self._command

    def _stats_of(self, pids: set[int]) -> Iterator[tuple[int, Stat]]:
        for pid in pids:
            with suppress(OSError, ValueError, IndexError):  # it has ended
                yield pid, self._stat(pid)

    def _stat(self, pid: int) -> Stat:
        return parse_stat(_read(f"{self._proc}/{pid}/stat"))

    def _private_bytes(self, pid: int) -> int:
        """Return the resident memory that no file backs; 0 if the process has ended.

        A data set that is mapped into memory makes the resident memory grow for a whole epoch; its pages are the
        kernel's.
        """
        fields = self._text(pid, "statm").split()
        return (int(fields[1]) - int(fields[2])) * _PAGE_BYTES if len(fields) > 2 else 0

    def _read_bytes(self, pid: int) -> int | None:
        """Return what a process and its ended children read from disks; None if the kernel does not count."""
        found = re.search(r"^read_bytes: (\d+)", self._text(pid, "io"), re.MULTILINE)
        return int(found[1]) if found else None

    def _command_line(self, pid: int) -> str:
        return self._text(pid, "cmdline")

    def _text(self, pid: int, file: str) -> str:
        """Return a file of a process; empty if it has ended, or may not be looked at."""
        with suppress(OSError):
            return _read(f"{self._proc}/{pid}/{file}")
        return ""


def descendants(roots: set[int], parents: Mapping[int, int]) -> set[int]:
    """Return the processes in parents, a mapping from process to parent, that descend from the roots."""
    found: set[int] = set()
    left = dict(parents)
    while more := {pid for pid, parent in left.items() if parent in roots or parent in found}:
        found |= more
        left = {pid: parent for pid, parent in left.items() if pid not in more}
    return found


def cpu_between(before: Mapping[int, Stat], now: Mapping[int, Stat], agents: set[int]) -> float:
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


def _read_between(before: Mapping[int, int], now: Mapping[int, int]) -> int:
    """As cpu_between: of a process that ended, its parent's counter has all that it read."""
    ended = sum(size for pid, size in before.items() if pid not in now)
    return max(0, sum(size - before.get(pid, 0) for pid, size in now.items()) - ended)


def _read(path: str) -> str:
    """As Path.read_text, at a third of its cost."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096).decode(errors="replace")
    finally:
        os.close(descriptor)
