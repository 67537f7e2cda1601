"""The threads of a rank's process and the CPUs that each may use, from /proc."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.machine.model import Bound, RankAffinity

PROC = Path("/proc")


@dataclass(frozen=True)
class Thread:
    """A thread: its id, its name, and the CPUs that it may use."""

    tid: int
    name: str
    cpus: str


@dataclass(frozen=True)
class RankThreads:
    """A rank's process with its threads, the main one first. steps: that the rank had made by then."""

    rank: int
    node_rank: int
    pid: int
    steps: int
    threads: tuple[Thread, ...]
    memory_nodes: str | None = None

    def summary(self) -> RankAffinity:
        counted = Counter(thread.cpus for thread in self.threads)
        return RankAffinity(
            rank=self.rank,
            node_rank=self.node_rank,
            pid=self.pid,
            steps=self.steps,
            cpus=self.threads[0].cpus,
            memory_nodes=self.memory_nodes,
            bound=tuple(Bound(cpus=cpus, threads=threads) for cpus, threads in counted.items()),
        )


def affinity_text(run: str, host: str, ranks: Iterable[RankThreads]) -> str:
    """Return one line per thread, in the words of OMP_DISPLAY_AFFINITY."""
    return "".join(
        (
            f"Threads of the ranks of {run} on {host}, and the CPUs that each may use\n",
            *(
                f"rank {rank.rank}: pid {rank.pid} tid {thread.tid} thread {number} bound to OS proc set "
                f"{{{thread.cpus}}}  {thread.name}\n"
                for rank in ranks
                for number, thread in enumerate(rank.threads)
            ),
        )
    )


def rank_threads(
    rank: int, node_rank: int, heartbeat_pid: int, steps: int, run_file: Path, proc: Path = PROC
) -> RankThreads | None:
    """Return the threads of a rank's process; None if it has ended or cannot be seen.

    heartbeat_pid: as the rank knows it, in a container perhaps in a numbering of its own.
    """
    pid = _find(rank, heartbeat_pid, run_file, proc)
    if pid is None:
        return None
    threads = sorted(_threads(proc / str(pid) / "task"), key=lambda thread: (thread.tid != pid, thread.tid))
    if not threads:
        return None
    memory_nodes = status(proc / str(pid) / "status").get("Mems_allowed_list")
    return RankThreads(rank, node_rank, pid, steps, tuple(threads), memory_nodes)


def status(path: Path) -> dict[str, str]:
    """Return the fields of a ``status`` file of /proc; empty if it cannot be read."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _find(rank: int, pid: int, run_file: Path, proc: Path) -> int | None:
    """Return the process by this machine's numbering: the one that has the rank's id and its environment."""
    if _is_rank(pid, rank, pid, run_file, proc):
        return pid
    for directory in proc.iterdir():
        if directory.name.isdigit() and _is_rank(int(directory.name), rank, pid, run_file, proc):
            return int(directory.name)
    return None


def _is_rank(pid: int, rank: int, own_pid: int, run_file: Path, proc: Path) -> bool:
    numbers = status(proc / str(pid) / "status").get("NSpid", str(pid)).split()
    if str(own_pid) not in numbers:
        return False
    environment = _environment(proc / str(pid) / "environ")
    return environment.get("DDP_LADDER_RUN") == str(run_file) and environment.get("RANK", str(rank)) == str(rank)


def _environment(path: Path) -> Mapping[str, str]:
    try:
        entries = path.read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(entry).partition("=")[::2] for entry in entries if entry)


def _threads(tasks: Path) -> Iterator[Thread]:
    with contextlib.suppress(OSError):  # the process has ended
        for task in tasks.iterdir():
            fields = status(task / "status")
            if "Cpus_allowed_list" in fields:
                yield Thread(int(task.name), fields.get("Name", ""), fields["Cpus_allowed_list"])
