"""End a rank when its launcher ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> bool:
    """Ask Linux to kill this process when its parent ends; return True on success.

    The kernel watches the *thread* that started this process, so a launcher must start its ranks
    from a thread that lives as long as they do. If the parent ends during this call, the parent's id
    changes. A parent that ended before it looks like a launcher that runs as process 1 of a container,
    so that case is ignored.
    """
    if not sys.platform.startswith("linux"):
        return False
    parent = os.getppid()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        arranged = bool(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return arranged
