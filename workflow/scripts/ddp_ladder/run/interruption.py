"""Signals that end a scale's job, and the orderly end of its agents."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

from ddp_ladder.common.command import leave_lost_terminal
from ddp_ladder.common.process import SIGNALS, Interrupted, ignored_from_the_start


class AgentProcess(subprocess.Popen[bytes]):
    """A process that starts agents, or is one, and ends after them."""

    def have_ended(self, within_s: float) -> bool:
        """Return True as soon as it and its agents have ended, False after ``within_s``."""
        try:
            self.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True


Starter = Callable[[], AgentProcess]
"""Starts an agent."""


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
    for later in SIGNALS:
        signal.signal(later, signal.SIG_IGN)
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


@contextmanager
def running(starters: Sequence[Starter], end_s: float) -> Iterator[SimpleQueue[int]]:
    """Start the agents and yield a queue that gets the exit code of each as it ends; at last end those that are left.

    end_s: time to end after SIGTERM.
    """
    agents: list[AgentProcess] = []
    exits: SimpleQueue[int] = SimpleQueue()
    try:
        for start in starters:
            with uninterrupted():
                agents.append(start())
        for agent in agents:
            threading.Thread(target=lambda agent=agent: exits.put(agent.wait()), daemon=True).start()
        yield exits
    finally:
        _end_agents(agents, end_s)


def _end_agents(agents: Sequence[AgentProcess], within_s: float) -> None:
    """Send SIGTERM to all agents, also those left of a launcher that failed; after ``within_s`` SIGKILL."""
    deadline_s = time.monotonic() + within_s  # it includes Slurm's time to pass the signal on
    bad = [agent for agent in agents if agent.poll() != 0]
    for agent in bad:
        agent.terminate()
    for agent in bad:
        if not agent.have_ended(max(0.1, deadline_s - time.monotonic())):
            agent.kill()
