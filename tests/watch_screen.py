"""watch.py on a terminal or in a pipe, for tests: what it writes, and the screen that this makes."""

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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from project_copy import environment

WATCH = (sys.executable, str(Path(__file__).parents[1] / "workflow/scripts/watch.py"))
# Another user, who may read everything, and write nothing: this Python may be in root's own directory.
ANYONE = (
    "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=+dac_read_search --ambient-caps=+dac_read_search"
)
_PART = re.compile(r"\x1b\[(\d+);1H|\x1b\[2J|\x1b\[K|\x1b\[\?\d+[hl]|\x1b\[[\d;]*m|\r|\n")


class Screen:
    """A terminal with watch.py on it, in a session of its own, so that keys that are signals reach it."""

    def __init__(
        self, results: Path, columns: int = 80, lines: int = 24, command: Sequence[str] = WATCH, **env: str
    ) -> None:
        self._ours, self._side = pty.openpty()
        termios.tcsetwinsize(self._side, (lines, columns))
        self.modes = termios.tcgetattr(self._side)
        self.process = subprocess.Popen(
            [*command, "--results", str(results), "--every", "0.5"],
            stdin=self._side,
            stdout=self._side,
            stderr=self._side,
            env=terminal_environment(env),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.written = b""
        self.rows: dict[int, str] = {}  # of the alternate screen
        self.widest = 0

    def read(self, seconds: float) -> None:
        """Read what is written within this time."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            if select.select([self._ours], [], [], left_s)[0]:
                self.written += os.read(self._ours, 65536)
        self.rows, self.widest = parsed(self.written)

    def await_text(self, text: str, timeout_s: float = 60) -> str:
        """Wait until a line of the screen contains ``text``; return that line."""
        self.await_true(lambda: any(text in line for line in self.rows.values()), text, timeout_s)
        return next(line for line in self.rows.values() if text in line)

    def await_true(self, condition: Callable[[], bool], what: str = "", timeout_s: float = 60) -> None:
        """Read until the condition is met; fail after this time."""
        until_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < until_s, f"{what!r} not within {timeout_s} s:\n{self}"
            self.read(0.3)

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def resize(self, columns: int, lines: int) -> None:
        termios.tcsetwinsize(self._side, (lines, columns))

    def end(self, timeout_s: float = 20) -> int:
        """Wait for the end; return the exit code."""
        until_s = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < until_s, str(self)
            self.read(0.1)
        self.read(0.2)
        return self.process.returncode

    @property
    def is_restored(self) -> bool:
        """True if the cursor is shown, the normal screen is back, and keys behave as before."""
        after = self.written.rpartition(b"\x1b[?25h\x1b[?1049l")
        return bool(after[1]) and b"\x1b[?" not in after[2] and termios.tcgetattr(self._side) == self.modes

    @property
    def last_words(self) -> str:
        """What is on the normal screen after the end."""
        return re.sub(r"\x1b\[[\d;]*m|\r", "", self.written.rpartition(b"\x1b[?1049l")[2].decode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)
        os.close(self._side)

    def __str__(self) -> str:
        return "\n".join(self.rows[row] for row in sorted(self.rows)) + f"\n{self.last_words}"


def terminal_environment(changes: Mapping[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in environment().items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    return {**kept, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **changes}


def parsed(written: bytes) -> tuple[dict[int, str], int]:
    """Return the rows of the alternate screen, and the width of the widest line that was ever on it."""
    text = written.decode(errors="replace")
    _, _, text = text.partition("\x1b[?1049h")
    text, _, _ = text.rpartition("\x1b[?1049l") if "\x1b[?1049l" in text else (text, "", "")
    rows: dict[int, str] = {}
    row = widest = position = 0
    for found in [*_PART.finditer(text), None]:
        piece = text[position : found.start() if found else None]
        if piece:
            rows[row] = rows.get(row, "") + piece
            widest = max(widest, len(rows[row]))
        if found is None:
            break
        position = found.end()
        if found[1]:
            row = int(found[1])
            rows[row] = ""
        elif found[0] == "\x1b[2J":
            rows = {}
    return rows, widest
