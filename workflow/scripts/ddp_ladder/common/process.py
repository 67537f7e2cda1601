"""Processes: tied lifetimes (Linux only), commands with a time limit, an identity that outlives a process, and how much
later than one node many have started theirs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from ddp_ladder.common.files import file_text
from ddp_ladder.common.formats import fields

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals with which a person, a terminal or Slurm ends a process."""


class Interrupted(Exception):
    """A signal, ``signum``, ends the job."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum
        self.at_s = time.time()


_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def ignored_from_the_start(signum: signal.Signals) -> bool:
    """Return True if this process was started to outlive its terminal, as with nohup."""
    return signum == signal.SIGHUP and signal.getsignal(signum) == signal.SIG_IGN


def die_with_parent(signum: signal.Signals, parent: int | None = None) -> None:
    """Ask the kernel to signal this process when its parent dies.

    parent: its process id; if that parent has died already, the signal is sent at once.
    """
    _prctl(_PR_SET_PDEATHSIG, signum)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signum)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants (child subreaper)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_descendants(within_s: float, grace_s: float = 0.0) -> None:
    """Kill all descendants of this process, also those that were re-parented to it; wait until they have ended.

    grace_s: in which they may end by themselves.
    """
    if grace_s:
        psutil.wait_procs(psutil.Process().children(recursive=True), timeout=grace_s)
    left = psutil.Process().children(recursive=True)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=within_s)


# Looked up here: between fork and exec the dynamic linker may be locked by another thread of the parent.
_call = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def _prctl(option: int, argument: int) -> None:
    if _call is not None:
        _call(option, argument, 0, 0, 0)


def status_of(pid: int) -> dict[str, str]:
    """Return the fields of /proc/<pid>/status; empty if it cannot be read."""
    return fields(file_text(Path(f"/proc/{pid}/status")) or "")


def catches(pid: int, signum: int) -> bool:
    """Return True if the process handles the signal; else it would end it."""
    return bool(int(status_of(pid).get("SigCgt", "0"), 16) >> (signum - 1) & 1)


def run_bounded(argv: Sequence[str], within_s: float, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a command to its end; return its exit code and its output, errors included.

    Its processes are in a group of their own, which is killed at the end. Raises OSError, and TimeoutExpired after
    within_s.
    """
    with subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(signal.SIGKILL),
    ) as process:
        try:
            printed, _ = process.communicate(timeout=within_s)
            return process.returncode, printed
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)


_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessId:
    """A unique identity of one process of one machine: it is never reused."""

    host: str
    kernel: str  # id of the machine's present boot; empty if the system has none: then host names tell machines apart
    name_space: str  # that of the process ids (a container has its own)
    pid: int
    started: float  # seconds since the boot

    @classmethod
    def own(cls) -> ProcessId:
        pid = os.getpid()
        boot = (file_text(_PROC / "sys/kernel/random/boot_id") or "").strip()
        return cls(socket.gethostname(), boot, _name_space(), pid, _start_time(pid) or 0.0)

    def is_alive(self) -> bool | None:
        """Return True if the process runs, None if that cannot be seen from here. A zombie has ended."""
        own = ProcessId.own()
        if self.kernel != own.kernel:
            return False if self.host == own.host else None  # this host has been rebooted since; or it is another host
        if self.name_space != own.name_space or (not self.kernel and self.host != own.host):
            return None
        try:
            return _start_time(self.pid) == self.started
        except PermissionError:
            return True  # this one's number is taken


def _name_space() -> str:
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return ""


def _start_time(pid: int) -> float | None:
    """Return the start in seconds since the boot; None if the process has ended: setting the clock changes nothing.

    Raises PermissionError if it may not be inspected.
    """
    booted_s = psutil.boot_time()  # first: some versions of psutil keep it for create_time
    try:
        process = psutil.Process(pid)
        ended = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return None if ended else round(process.create_time() - booted_s, 2)
    except (psutil.NoSuchProcess, OverflowError):
        if _exists(pid):  # the system hides other users' processes
            raise PermissionError(pid) from None
        return None
    except psutil.AccessDenied as error:
        raise PermissionError(pid) from error


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's process
    return True


# --- Time limits that grow with the number of nodes.


# `import torch.distributed` looks up about 5,000 paths. A node caches what it has looked up, but all nodes ask the same
# file system at the same time, and its metadata server answers about 20,000 requests a second.
NODES_STARTED_PER_S = 4


def start_allowance_s(nodes: int) -> float:
    """Return how much later than one node alone so many nodes may have started Python and torch, in whole seconds."""
    return float(nodes // NODES_STARTED_PER_S)
