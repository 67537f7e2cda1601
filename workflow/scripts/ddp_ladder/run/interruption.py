"""Signals that end a scale's job, and the orderly end of its agents."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ddp_ladder.common.command import leave_lost_terminal
from ddp_ladder.common.process import SIGNALS, ignored_from_the_start


class Interrupted(Exception):
    """A signal, ``signum``, ends the job."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


def raise_on_signals() -> None:
    """Make the first SIGINT, SIGTERM or SIGHUP raise Interrupted; later ones are ignored during the clean-up."""
    for signum in SIGNALS:
        if not ignored_from_the_start(signum):
            signal.signal(signum, _interrupt)


_delayed: list[int] | None = None  # signals that came while none may interrupt


def _interrupt(signum: int, _frame: object) -> None:
    if _delayed is not None:
        _delayed.append(signum)
        return
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    leave_lost_terminal()
    raise Interrupted(signum)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Interrupted to the end of the block, so that every started process is in the list of those to end."""
    global _delayed
    _delayed = []
    try:
        yield
    finally:
        came, _delayed = _delayed, None
    if came:
        _interrupt(came[0], None)


def end_agents(agents: Sequence[subprocess.Popen[bytes]], within_s: float) -> None:
    """Send SIGTERM to all agents, and SIGKILL to those that are still there after ``within_s``."""
    deadline_s = time.monotonic() + within_s  # it includes Slurm's time to pass the signal on
    for agent in agents:
        if agent.poll() is None:
            agent.terminate()
    for agent in agents:
        try:
            agent.wait(max(0.1, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            agent.kill()
