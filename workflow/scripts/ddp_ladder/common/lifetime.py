"""Ties between the lifetimes of processes (Linux only; no effect elsewhere)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

import psutil

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals with which a person, a terminal or Slurm ends a process."""

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


def end_descendants(within_s: float) -> None:
    """Kill all descendants of this process, also those that were re-parented to it; wait until they have ended."""
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
