"""The processes of an agent's ranks: their states, and the stacks of their threads."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from ddp_ladder.machine.threads import PROC, status
from ddp_ladder.records.hang_models import Heartbeat, ProcessState

HEADER_BYTES = 512  # of a heartbeat; its stacks follow
STACK_BYTES = 200_000  # read of a rank's new stacks
STACKS_WITHIN_S = 3.0  # for all ranks to answer: their hearts beat once a second
PY_SPY_WITHIN_S = 10.0
TICK_S = 0.05
_STATES: Mapping[str, ProcessState] = {
    psutil.STATUS_STOPPED: "stopped",
    psutil.STATUS_TRACING_STOP: "stopped",
    psutil.STATUS_DISK_SLEEP: "uninterruptible",
    psutil.STATUS_ZOMBIE: "gone",
    psutil.STATUS_DEAD: "gone",
}


@dataclass(frozen=True)
class RankProcess:
    """A rank's process as this machine sees it. pid: outside of a container's own numbering."""

    pid: int
    state: ProcessState


def find(heartbeat: Heartbeat) -> RankProcess | None:
    """Return the process of a heartbeat, if it is a descendant of this one; None if it has ended."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if heartbeat.pid in _numbers(process.pid):
                return RankProcess(process.pid, _STATES.get(process.status(), "alive"))
    return None


def _numbers(pid: int) -> list[int]:
    """Return the ids of a process in its own and all outer numberings."""
    return [int(number) for number in _status(pid).get("NSpid", str(pid)).split()]


def _status(pid: int) -> dict[str, str]:
    return status(PROC / str(pid) / "status")


def _catches(pid: int, signum: int) -> bool:
    """Return True if the process handles the signal; else it would end it."""
    return bool(int(_status(pid).get("SigCgt", "0"), 16) >> (signum - 1) & 1)


def stacks(files: Mapping[int, Path], ranks: Mapping[int, tuple[Heartbeat, RankProcess]]) -> dict[int, str]:
    """Return the stacks of these ranks, as far as they could be had within a bounded time.

    files: the heartbeat of each rank, to which it appends its stacks: those of all its threads once this appended a
        line, or that of its main thread alone on the signal, which only a rank gets whose heart does not answer.
    """
    # A stopped process would answer when it goes on, in the middle of something else.
    running = {rank: one for rank, one in ranks.items() if one[1].state != "stopped"}
    found = _answers(files, {rank: size for rank in running if (size := _ask(files[rank]))})
    signalled: dict[int, int] = {}
    for rank, (heartbeat, process) in running.items():
        if rank not in found and heartbeat.signal:
            with contextlib.suppress(OSError):
                before = files[rank].stat().st_size
                if _catches(process.pid, heartbeat.signal):
                    os.kill(process.pid, heartbeat.signal)
                    signalled[rank] = before
    found |= _answers(files, signalled)
    for rank, (_, process) in ranks.items():
        if rank not in found and (text := _by_py_spy(process.pid)):
            found[rank] = text
    return found


def _ask(file: Path) -> int:
    """Append a line to a heartbeat; return its size then, 0 if that failed: a rank without a heartbeat gives none."""
    with contextlib.suppress(OSError):
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, b"\n")
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    return 0


def _answers(files: Mapping[int, Path], asked: Mapping[int, int]) -> dict[int, str]:
    """Return what the ranks appended to their files after these sizes, once nothing more comes."""
    until_s = time.monotonic() + (STACKS_WITHIN_S if asked else 0.0)
    sizes: dict[int, int] = dict(asked)
    while time.monotonic() < until_s:
        time.sleep(TICK_S)
        before, sizes = sizes, {rank: _size(files[rank]) for rank in asked}
        if sizes == before and all(sizes[rank] > size for rank, size in asked.items()):
            break
    return {rank: text for rank, size in asked.items() if (text := _read(files[rank], size))}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, begin: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(begin)
            return file.read(STACK_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


def _by_py_spy(pid: int) -> str:
    """Return what py-spy prints, which also works if the process does not answer; empty without py-spy."""
    if shutil.which("py-spy") is None:
        return ""
    try:
        done = subprocess.run(
            ["py-spy", "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PY_SPY_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""
