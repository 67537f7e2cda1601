"""The warning that a job is nearly over: SIGUSR1 to the ranks that have a handler for it, and to nothing else.

Slurm's own (--signal) goes to every process of a step: it ends a rank without a handler, torchrun ends its ranks at it,
and a worker of a loader that inherited the handler would save the state again. This one works without Slurm, too.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil

from ddp_ladder.common.process import catches


class TimedWarning:
    """The warning to the ranks below this process, at a time."""

    def __init__(self, at_s: float | None) -> None:
        """at_s: unix time; None: there is none."""
        self.warned: int | None = None  # the ranks that were signalled; None: it did not come
        self._timer = None if at_s is None else threading.Timer(max(0.0, at_s - time.time()), self.warn)
        self._once = threading.Lock()

    def start(self) -> None:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def warn(self) -> None:
        """Signal the ranks, unless they have been: a script would save its state twice."""
        if not self._once.acquire(blocking=False):
            return
        self.warned = 0
        for process in psutil.Process().children():
            for rank in _with_handler(process, is_rank=False):
                with suppress(psutil.Error):
                    rank.send_signal(signal.SIGUSR1)
                    self.warned += 1


def _with_handler(process: psutil.Process, is_rank: bool) -> Iterator[psutil.Process]:
    """Yield the topmost processes with a handler of SIGUSR1 below each rank: workers of a loader inherit it.

    is_rank: whether ``process`` is below a rank's first process, which may be a wrapper.
    """
    with suppress(psutil.Error, OSError):
        below = process.children()
        is_rank = is_rank or "RANK" in process.environ()
        if is_rank and catches(process.pid, signal.SIGUSR1):
            yield process
            return
        for child in below:
            yield from _with_handler(child, is_rank)
