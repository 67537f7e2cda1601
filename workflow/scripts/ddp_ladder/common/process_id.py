"""The identity of a process that holds a lock, so that others can check later whether it is alive."""

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
    """A unique identity of one process of one machine: it is never reused.

    kernel: id of the machine's present boot; empty if the system has none: then the host names distinguish machines.
    name_space: that of the process ids (a container has its own). started: in the system's own unit.
    """

    host: str
    kernel: str
    name_space: str
    pid: int
    started: float

    @classmethod
    def own(cls) -> ProcessId:
        """Return the identity of the calling process."""
        pid = os.getpid()
        return cls(socket.gethostname(), _boot(), _name_space(), pid, _start_time(pid) or 0.0)

    def is_alive(self) -> bool | None:
        """Return True if the process runs, None if that cannot be seen from here. A zombie has ended."""
        here = ProcessId.own()
        if self.kernel != here.kernel:
            return False if self.host == here.host else None  # this host has been rebooted since; or it is another host
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
    """Return the start time; None if the process has ended. Raises PermissionError if it may not be inspected.

    On Linux in ticks since the boot: wall-clock time would change with the clock.
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
        if _exists(pid):
            raise PermissionError(pid) from None
        return None
    fields = stat.rpartition(")")[2].split()  # the process name, in parentheses, may hold spaces
    return None if fields[0] in "ZX" else float(fields[19])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's process
    return True
