"""SIGINT, SIGTERM and SIGHUP to Snakemake end a climb in order: its jobs first, then its gates and the report.

Snakemake itself does so for SIGINT alone, and only where it reaches the jobs too, as Ctrl-C in a terminal does. At
SIGTERM it waits for its jobs, and SIGHUP kills it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any

import psutil

from ddp_ladder.command import leave_lost_terminal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN_S = 0.5
# Left to end by themselves: a job whose submission is cut off may run unseen, and jobs still have to be cancelled.
OF_SLURM = frozenset({"sacct", "sbatch", "scancel", "scontrol", "sinfo", "squeue"})
ENDS_ITS_OWN = "run_scale.py"  # what is below it gets the signal from it, in order


class EndedBySignal(KeyboardInterrupt):
    """This process was told to end, by the signal that the text names."""


def ignored_from_the_start(signum: signal.Signals) -> bool:
    """Whether this process was started to outlive its terminal, as by nohup."""
    return signum == signal.SIGHUP and signal.getsignal(signum) == signal.SIG_IGN


def end_on_signals() -> None:
    """From now on the first of SIGNALS is passed on to the children and raised here as EndedBySignal.

    Later ones, and those to what is started after it, disturb nothing: they are ignored.
    """
    sys.excepthook = _tell_unless_ended
    if threading.current_thread() is threading.main_thread():
        for signum in SIGNALS:
            if not ignored_from_the_start(signum):
                signal.signal(signum, _interrupt)


def _tell_unless_ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What is printed of an exception that nobody has caught: of a signal before any job was started it is all said."""
    if not isinstance(error, EndedBySignal):
        sys.__excepthook__(kind, error, trace)


def _interrupt(signum: int, _frame: FrameType | None) -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    leave_lost_terminal()
    name = signal.Signals(signum).name
    with contextlib.suppress(OSError):  # not print: it may be what was interrupted
        os.write(2, f"{name}: ending what runs; finished runs are kept\n".encode())
    _pass_on(signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM)
    raise EndedBySignal(name)


def pass_on_at_cancel(executor: type[Any]) -> None:
    """From now on ``executor``, which starts jobs on this machine, ends them when it is cancelled, and then waits.

    Also one that was about to be started when the signal came. Raises AttributeError for a class without ``cancel``.
    """
    wait_for_jobs = executor.cancel

    def cancel(self: Any) -> None:
        ended = threading.Event()
        teller = threading.Thread(target=_pass_on_until, args=(ended,), daemon=True)
        teller.start()
        try:
            wait_for_jobs(self)
        finally:
            ended.set()
            teller.join()

    executor.cancel = cancel


def _pass_on_until(ended: threading.Event) -> None:
    while not ended.wait(AGAIN_S):
        _pass_on(signal.SIGTERM)


def _pass_on(signum: signal.Signals) -> None:
    for process in _to_be_told(psutil.Process().children()):
        with contextlib.suppress(psutil.Error):  # ended in the meantime
            process.send_signal(signum)


def _to_be_told(processes: Sequence[psutil.Process]) -> Iterator[psutil.Process]:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.name() in OF_SLURM:
                continue
            below = process.children()
            yield process
            if not any(argument.endswith(ENDS_ITS_OWN) for argument in process.cmdline()):
                yield from _to_be_told(below)
