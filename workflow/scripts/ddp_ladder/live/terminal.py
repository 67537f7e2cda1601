"""A terminal that a view refreshes: only lines that have changed are written, and every end restores it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Sequence
from types import FrameType
from typing import Literal, Self, TextIO

from rich.console import Console
from rich.text import Text

from ddp_ladder.live.screen import plain

OPEN, CLOSE = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[?25h\x1b[?1049l"  # the alternate screen, without a cursor
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGWINCH)
QUIT_KEYS = b"qQ\x03\x04"

Event = Literal["time", "redraw"]


class Quit(Exception):
    """The user, or a signal, ends the view. code: the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Events:
    """What may end a pause: time, a key, a signal. Signals are only noted, so that nothing is cut in the middle."""

    def __init__(self, keys: TextIO | None) -> None:
        self._keys = keys.fileno() if keys is not None else None
        self._noted: list[int] = []
        self._pipe = (-1, -1)
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        for end in self._pipe:
            os.close(end)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted.append(number)
        with contextlib.suppress(OSError):
            os.write(self._pipe[1], b".")

    def wait(self, seconds: float) -> Event:
        """Return "time" after so many seconds, "redraw" if the screen has to be drawn anew. Raises Quit."""
        until_s = time.monotonic() + seconds
        while True:
            if self._noted:
                return self._heed(self._noted.pop(0))
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return "time"
            sources = [self._pipe[0], *([] if self._keys is None else [self._keys])]
            ready, _, _ = select.select(sources, [], [], left_s)
            if self._pipe[0] in ready:
                with contextlib.suppress(OSError):
                    os.read(self._pipe[0], 1024)
            if self._keys in ready:
                self._read_keys()

    def _read_keys(self) -> None:
        assert self._keys is not None
        try:
            keys = os.read(self._keys, 1024)
        except OSError:
            keys = b""
        if not keys:
            self._keys = None  # the terminal is gone, or not ours; a signal ends the view
        elif any(key in QUIT_KEYS for key in keys):
            raise Quit(0)

    def _heed(self, number: int) -> Event:
        if number == signal.SIGINT:
            raise Quit(0)
        if number in (signal.SIGTERM, signal.SIGHUP):
            raise Quit(128 + number)
        if number == signal.SIGTSTP:
            self._pause()
        return "redraw"

    def _pause(self) -> None:
        """Stop this process, as Ctrl-Z asks; a terminal is left and entered again."""
        os.kill(os.getpid(), signal.SIGSTOP)


class Terminal(Events):
    """The alternate screen of a terminal, and its keys."""

    def __init__(self, stream: TextIO, keys: TextIO | None) -> None:
        super().__init__(keys)
        self._stream = stream
        self._console = Console(file=stream, highlight=False, emoji=False)
        self._is_unicode = (stream.encoding or "").lower().replace("-", "").startswith("utf")
        self._modes = termios.tcgetattr(keys) if keys is not None else None
        self._shown: list[str] = []

    def __enter__(self) -> Self:
        super().__enter__()
        self._open()
        return self

    def __exit__(self, *error: object) -> None:
        self._close()
        super().__exit__(*error)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines; 80 and 24 if the terminal does not tell them."""
        try:
            columns, lines = os.get_terminal_size(self._stream.fileno())
        except OSError:
            columns, lines = 0, 0
        return columns or 80, lines or 24

    def show(self, lines: Sequence[Text], anew: bool = False) -> None:
        """Write the lines that differ from those on the screen; all of them if it is to be drawn anew."""
        new = [self._rendered(line) for line in lines]
        before = [] if anew else self._shown
        written = ["\x1b[2J"] if anew else []
        for row in range(max(len(new), len(before))):
            line = new[row] if row < len(new) else ""
            if row >= len(before) or before[row] != line:
                written.append(f"\x1b[{row + 1};1H{line}\x1b[K")
        self._shown = new
        self._write("".join(written))

    def print(self, lines: Sequence[Text]) -> None:
        """Print lines on the normal screen, after the end of the view."""
        self._write("".join(f"{self._rendered(line)}\n" for line in lines))

    def _rendered(self, line: Text) -> str:
        with self._console.capture() as capture:
            self._console.print(line, end="", soft_wrap=True)
        text = capture.get()
        return text if self._is_unicode else plain(text)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone: a signal follows
            self._stream.write(text)
            self._stream.flush()

    def _open(self) -> None:
        if self._keys is not None:
            tty.setcbreak(self._keys, termios.TCSANOW)
        self._shown = []
        self._write(OPEN)

    def _close(self) -> None:
        self._write(CLOSE)
        if self._modes is not None and self._keys is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSANOW, self._modes)

    def _pause(self) -> None:
        self._close()
        super()._pause()
        self._open()


def keyboard() -> TextIO | None:
    """Return standard input if it is a terminal."""
    return sys.stdin if sys.stdin is not None and sys.stdin.isatty() else None
