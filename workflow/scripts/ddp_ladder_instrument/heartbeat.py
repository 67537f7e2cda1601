"""ranks/rank<k>.heartbeat: how far this rank is, for the hang watch of its node's agent, and the stacks of its threads.

The first HEADER_BYTES are one JSON object, padded with blanks and rewritten in place once a second; no reader on
another node relies on the file. Stacks follow. The agent asks for them by appending a line, and the thread that writes
the heartbeat appends those of all threads. It holds the GIL meanwhile: a stack that is read while its thread runs can
end the process with SIGSEGV. If C code keeps the GIL, the thread cannot answer, and the agent sends a signal: its
handler appends the stack of the main thread, which it interrupts, and of no other.

A thread of its own writes, so that a rank that waits in a collective still tells how many steps it made, and so that a
step costs nothing. A rank that is stopped, or holds the GIL, falls silent: that is what the watch looks for.
"""

from __future__ import annotations

import _thread
import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Optional

HEADER_BYTES = 512
INTERVAL_S = 1.0
# Torch's flight recorder is written once nothing has moved for so long: in a slow step it would only cost time.
RECORD_AFTER_S = 2.0
RECORD_AFTER_STEPS = 5.0


class Signs(NamedTuple):
    """What a rank shows of its progress.

    phase: starting (no step yet), training, evaluating (the model is in eval mode), between passes (a pass over a
        loader, or an evaluation, ended after the last step), unknown (steps without a DataLoader: what the program does
        between them cannot be told from training), ended.
    step_s: median time of the last steps. moved: changes with every step, backward pass and batch.
    """

    steps: int
    phase: str
    step_s: Optional[float]
    moved: tuple[object, ...]


class Heartbeat:
    """The writer. look: returns the signs.

    Both of these are called when nothing moves. sequence: returns the number of collective calls. record: writes the
    last of them, once in each standstill.
    """

    def __init__(
        self, path: Path, look: Callable[[], Signs], sequence: Callable[[], int | None], record: Callable[[], None]
    ) -> None:
        self._path = path
        self._look = look
        self._sequence = sequence
        self._record = record
        self._is_recorded = False
        self._file = -1
        self._stacks = -1
        self._answered_bytes = HEADER_BYTES  # of the file
        self._signal: int | None = None
        self._moved: tuple[object, ...] | None = None
        self._moved_at_s = (0.0, 0.0)
        self._stop = threading.Lock()
        self._writing = threading.Lock()

    def start(self) -> None:
        """Begin, also after a fork. Raises OSError if the file cannot be written."""
        if self._file < 0:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            self._stacks = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            self._answered_bytes = max(HEADER_BYTES, os.fstat(self._file).st_size)
            self._signal = _register(self._stacks)
        self._moved = None
        self._stop, self._writing = threading.Lock(), threading.Lock()  # a fork may have copied them locked
        self._stop.acquire()
        # Not one of module threading: a script that counts its threads finds none but its own.
        _thread.start_new_thread(self._beat_until, (self._stop,))
        self._beat()

    def stop(self) -> None:
        """Write the last signs and end the thread."""
        if self._file >= 0 and self._stop.locked():
            self._stop.release()
            self._beat()

    def hand_over(self) -> None:
        """End the thread: a process that this one starts writes the file from now on."""
        if self._stop.locked():
            self._stop.release()

    def _beat_until(self, stop: threading.Lock) -> None:
        while not stop.acquire(timeout=INTERVAL_S):
            try:
                self._beat()
            except Exception:  # a full disk is tried again; a fault of ours must not show in the script's output
                continue

    def _beat(self) -> None:
        """Write the signs. Raises OSError."""
        with self._writing:
            self._write(self._look())

    def _write(self, signs: Signs) -> None:
        if self._signal is not None and not _is_file(self._stacks, self._path):
            faulthandler.unregister(self._signal)
            self._signal = None
        if not _is_file(self._file, self._path):
            return  # the script closed all files, and the number may be another file now
        still = signs.moved == self._moved
        if not still:
            self._moved = signs.moved
            self._moved_at_s = (time.monotonic(), time.time())
            self._is_recorded = False
        content = {
            "pid": os.getpid(),
            "thread": threading.main_thread().ident,
            "signal": self._signal,
            "phase": signs.phase,
            "steps": signs.steps,
            "step_s": signs.step_s,
            "moved_monotonic_s": self._moved_at_s[0],
            "moved_at_s": self._moved_at_s[1],
            "sequence": self._sequence() if still else None,
        }
        os.pwrite(self._file, (json.dumps(content).ljust(HEADER_BYTES - 1) + "\n").encode(), 0)
        if os.fstat(self._file).st_size > self._answered_bytes and _is_file(self._stacks, self._path):
            faulthandler.dump_traceback(self._stacks, all_threads=True)
            self._answered_bytes = os.fstat(self._file).st_size
        least_s = max(RECORD_AFTER_S, RECORD_AFTER_STEPS * (signs.step_s or 0.0))
        if not self._is_recorded and time.monotonic() - self._moved_at_s[0] >= least_s:
            self._is_recorded = True
            self._record()


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _register(stacks: int) -> int | None:
    """Make a real-time signal that nobody uses append the main thread's stack; return its number, None without one."""
    if not sys.platform.startswith("linux"):
        return None
    for signum in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if signal.getsignal(signum) == signal.SIG_DFL:
            faulthandler.register(signum, file=stacks, all_threads=False, chain=False)
            return signum
    return None
