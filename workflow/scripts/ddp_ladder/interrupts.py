"""SIGINT to Snakemake alone (``kill -INT``) ends its local jobs too, as Ctrl-C in a terminal does."""

from __future__ import annotations

import contextlib
import signal
import threading
from types import FrameType

import psutil


def pass_on_interrupts() -> None:
    """From now on SIGINT reaches this process's children before it is raised here as KeyboardInterrupt."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # ended in the meantime
            child.send_signal(signum)
    signal.default_int_handler(signum, frame)
