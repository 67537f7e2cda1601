"""How a scale's job ends: its time, the warning to its ranks, signals, and the orderly end of its agents."""

from __future__ import annotations

import math
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue

import psutil

from ddp_ladder.common.command import leave_lost_terminal
from ddp_ladder.common.process import SIGNALS, Interrupted, catches, ignored_from_the_start


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


# --- The time that a job has for its runs, and that it needs to end them before Slurm does.


GRACE_S = 20.0  # for a script that saves its state on SIGTERM; then everything is killed
KILLED_S = 10.0  # for Slurm to end the tasks of a job step on all nodes after SIGKILL
END_S = 2 * GRACE_S  # for agents to end after SIGTERM; each needs one grace period for its own processes
# Before Slurm ends the job, it has to end its agents, which may take all of END_S and KILLED_S, join the logs and write
# the records, which takes long on a slow file system.
WRITING_S = 20
MARGIN_S = END_S + KILLED_S + WRITING_S


def limits_s(runtime_s: float, slurm_s: float | None) -> tuple[float, float]:
    """Return the time for the scale's runs, and the time for agents to end after SIGTERM.

    slurm_s: until Slurm ends the job; None if it does not. If that is short, half of it is for the runs.
    """
    if slurm_s is None:
        return runtime_s, END_S
    margin_s = min(MARGIN_S, slurm_s / 2)
    return min(runtime_s, slurm_s - margin_s), END_S * margin_s / MARGIN_S


# --- The warning that a job is nearly over: SIGUSR1 to the ranks that have a handler for it, and to nothing else.
# Slurm's own (--signal) goes to every process of a step: it ends a rank without a handler, torchrun ends its ranks at
# it, and a worker of a loader that inherited the handler would save the state again. This one works without Slurm,
# too.


TWICE_S = 30.0  # a script that is warned twice within this time would save its state twice at once


class TimedWarning:
    """The warning to the ranks below this process, at a time, or when it is asked for."""

    def __init__(self, at_s: float | None) -> None:
        """at_s: unix time; None: there is none."""
        self.warned: int | None = None  # the ranks that were signalled; None: it did not come
        self._timer = None if at_s is None else threading.Timer(max(0.0, at_s - time.time()), self.warn)
        self._lock, self._last_s = threading.Lock(), -math.inf

    def start(self) -> None:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def warn(self) -> None:
        """Signal the ranks, unless they just have been."""
        with self._lock:
            if time.monotonic() - self._last_s < TWICE_S:
                return
            self._last_s = time.monotonic()
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
