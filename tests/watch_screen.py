"""watch.py on a terminal, for tests: what it writes, and the screen that this makes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from project_copy import environment

WATCH = (sys.executable, str(Path(__file__).parents[1] / "workflow/scripts/watch.py"))
# Another user, who may read everything, and write nothing: this Python may be in root's own directory.
ANYONE = (
    "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=+dac_read_search --ambient-caps=+dac_read_search"
)
OPENS, CLOSES = "\x1b[?1049h", "\x1b[?1049l"  # the alternate screen


class Screen:
    """A terminal of 24 lines with watch.py on it, in a session of its own, so that Ctrl-C reaches it."""

    def __init__(self, results: Path, columns: int = 80, command: Sequence[str] = WATCH, **env: str) -> None:
        self._ours, self._side = pty.openpty()
        termios.tcsetwinsize(self._side, (24, columns))
        kept = {key: value for key, value in environment().items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [*command, "--results", str(results)],
            stdin=self._side,
            stdout=self._side,
            stderr=self._side,
            env={**kept, "TERM": "xterm-256color", **env},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self._written = b""

    @property
    def written(self) -> str:
        """Everything so far, without colours."""
        return re.sub(r"\x1b\[[\d;]*m|\r", "", self._written.decode(errors="replace"))

    @property
    def rows(self) -> list[str]:
        """The lines of the last whole picture on the alternate screen."""
        *_, picture, _ = ["", *self.written.partition(OPENS)[2].partition(CLOSES)[0].split("\x1b[H"), ""][-3:]
        return picture.split("\n")

    @property
    def last_words(self) -> str:
        """What is on the normal screen after the end; empty if the cursor or the normal screen is not back."""
        before, _, after = self.written.rpartition(CLOSES)
        return after if before.rfind("\x1b[?25h") > before.rfind("\x1b[?25l") else ""

    def read(self, seconds: float) -> None:
        """Read what is written within this time."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            if select.select([self._ours], [], [], left_s)[0]:
                self._written += os.read(self._ours, 65536)

    def await_text(self, text: str, timeout_s: float = 60) -> None:
        """Wait until a line of the screen contains ``text``."""
        self.await_true(lambda: any(text in line for line in self.rows), repr(text), timeout_s)

    def await_true(self, holds: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
        """Wait until the screen shows what is waited for."""
        until_s = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < until_s, f"{what} not within {timeout_s} s:\n{self.written}"
            self.read(0.3)

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def end(self, timeout_s: float = 20) -> int:
        """Wait for the end; return the exit code."""
        until_s = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < until_s, self.written
            self.read(0.1)
        self.read(0.2)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)
        os.close(self._side)
