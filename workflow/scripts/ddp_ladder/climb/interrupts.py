"""SIGINT, SIGTERM and SIGHUP to Snakemake end a climb in order: its jobs first, then its gates and the report.

Snakemake itself does so for SIGINT alone, and only if the jobs get it too, as at Ctrl-C in a terminal. At SIGTERM it
waits for its jobs, and SIGHUP kills it.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any

import psutil

from ddp_ladder.common.command import leave_lost_terminal
from ddp_ladder.common.lifetime import SIGNALS, ignored_from_the_start

AGAIN_S = 0.5
# These end by themselves: a job whose submission is cut off may run unseen, and scancel is still needed.
OF_SLURM = frozenset({"sacct", "sbatch", "scancel", "scontrol", "sinfo", "squeue"})
ENDS_ITS_CHILDREN = "run_scale.py"  # it passes the signal on to its own processes, in order


class EndedBySignal(KeyboardInterrupt):
    """This process got a signal that ends it; the text names it."""


_ended_by: str | None = None


def ended_by() -> str | None:
    """Return the name of the signal that is ending this process; None if there is none."""
    return _ended_by


def end_on_signals() -> None:
    """Install handlers: the first of SIGNALS is passed on to the children and raised here as EndedBySignal.

    Later ones are ignored, also by what is started after it.
    """
    sys.excepthook = _print_unless_ended
    if threading.current_thread() is threading.main_thread():
        for signum in SIGNALS:
            if not ignored_from_the_start(signum):
                signal.signal(signum, _interrupt)


def _print_unless_ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught exception, but no signal: the handler has reported it."""
    if not isinstance(error, EndedBySignal):
        sys.__excepthook__(kind, error, trace)


def _interrupt(signum: int, _frame: FrameType | None) -> None:
    global _ended_by
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    leave_lost_terminal()
    _ended_by = name = signal.Signals(signum).name
    with contextlib.suppress(OSError):  # not print: it may be what was interrupted
        os.write(2, f"{name}: ending what runs; finished runs are kept\n".encode())
    _pass_on(signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM)
    raise EndedBySignal(name)


def take_sigterm_in_a_thread(scheduler: type[Any]) -> None:
    """Let ``scheduler`` of a job's Snakemake take SIGTERM in a thread. Raises AttributeError without its handler.

    The handler takes a lock that the main thread holds for a moment when a child ends, as it does at the same SIGTERM:
    it would wait for itself, for ever.
    """
    end = scheduler.exit_gracefully

    def exit_gracefully(self: Any, *_: object) -> None:
        _thread.start_new_thread(end, (self,))  # threading.Thread takes locks too

    scheduler.exit_gracefully = exit_gracefully


def pass_on_at_cancel(executor: type[Any]) -> None:
    """Make ``executor``, which starts jobs on this machine, end them when it is cancelled, and then wait for them.

    Also a job that was about to start when the signal came. Raises AttributeError for a class without ``cancel``.
    """
    wait_for_jobs = executor.cancel

    def cancel(self: Any) -> None:
        ended = threading.Event()
        sender = threading.Thread(target=_pass_on_until, args=(ended,), daemon=True)
        sender.start()
        try:
            wait_for_jobs(self)
        finally:
            ended.set()
            sender.join()

    executor.cancel = cancel


def _pass_on_until(ended: threading.Event) -> None:
    while not ended.wait(AGAIN_S):
        _pass_on(signal.SIGTERM)


def _pass_on(signum: signal.Signals) -> None:
    for process in _receivers(psutil.Process().children()):
        with contextlib.suppress(psutil.Error):  # ended in the meantime
            process.send_signal(signum)


def _receivers(processes: Sequence[psutil.Process]) -> Iterator[psutil.Process]:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.name() in OF_SLURM:
                continue
            below = process.children()
            yield process
            if not any(argument.endswith(ENDS_ITS_CHILDREN) for argument in process.cmdline()):
                yield from _receivers(below)
