"""A process by which something is held, told so that others can see later whether it is still alive."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessId:
    """One process of one machine, for good: no other process ever has the same.

    kernel: the machine's present boot and the name space of its process ids (a container has its own); empty where the
    system has neither, there the host's name alone tells machines apart. started: in the system's own unit.
    """

    host: str
    kernel: str
    name_space: str
    pid: int
    started: float

    @classmethod
    def own(cls) -> ProcessId:
        """Of the process that asks."""
        pid = os.getpid()
        return cls(socket.gethostname(), _boot(), _name_space(), pid, _start_time(pid) or 0.0)

    def is_alive(self) -> bool | None:
        """Whether the process runs; None where that cannot be seen from here. A zombie has ended."""
        here = ProcessId.own()
        if self.kernel != here.kernel:
            return (
                False if self.host == here.host else None
            )  # the same host has been started anew since, or another one
        if self.name_space != here.name_space or (not self.kernel and self.host != here.host):
            return None
        try:
            return _start_time(self.pid) == self.started
        except PermissionError:
            return True  # the system hides other users' processes, and this one's number is taken


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _name_space() -> str:
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return ""


def _start_time(pid: int) -> float | None:
    """None for a process that has ended. Raises PermissionError where it is there and may not be looked at.

    On Linux in ticks since the boot: seconds of the day would move with the clock.
    """
    if sys.platform != "linux":
        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
        except psutil.NoSuchProcess:
            return None
        except psutil.AccessDenied as error:
            raise PermissionError(pid) from error
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except ProcessLookupError:
        return None
    except FileNotFoundError:
        if _is_there(pid):
            raise PermissionError(pid) from None
        return None
    fields = stat.rpartition(")")[2].split()  # the name, in parentheses, may hold anything
    return None if fields[0] in "ZX" else float(fields[19])


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # someone else's
    return True
