"""The live view: on a terminal, as lines in a pipe, or once. It ends when the ladder does, and every end restores
the terminal.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import textwrap
import time
import tty
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import yaml
from rich.console import Console
from rich.text import Text

from ddp_ladder.common.files import located
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.process import end_descendants
from ddp_ladder.live.screen import FOOTER, Changes, plain, screen_of
from ddp_ladder.live.status import LadderState, Reader, SlurmJobs
from ddp_ladder.plan.file import read_plan
from ddp_ladder.settings.sources import CONFIG

WIDTH_IN_A_PIPE = 80
OPEN, CLOSE = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[?25h\x1b[?1049l"  # the alternate screen, without a cursor
ENDS = {signal.SIGINT: 0, signal.SIGTERM: 128 + signal.SIGTERM, signal.SIGHUP: 128 + signal.SIGHUP}
QUIT_KEYS = b"qQ\x03\x04"
NOT_YET = "there is no plan yet"
FIRST = "start the ladder, `snakemake --cores all` or `snakemake --profile profiles/slurm`, or name its --results"
DAMAGED = (
    "whoever runs this ladder starts it again, which writes the plan anew; a ladder of another version of ddp-ladder "
    "is watched with that version"
)
UNREADABLE = "ask whoever runs this ladder to make it readable"


def results_directory() -> Path:
    """Return ``results`` of config/config.yaml; ``results`` if that cannot be read now: it may be being edited."""
    try:
        found = yaml.safe_load(Path(located(CONFIG)).read_text())["results"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        found = None
    return Path(found) if isinstance(found, str) and found else Path("results")


class View:
    """What is known of a ladder, with Slurm's last answer. Raises UserError for a file in place of a directory."""

    def __init__(self, results: Path) -> None:
        if os.path.isfile(results):
            what = "this is a file, not the results directory of a ladder"
            raise UserError(Problem(str(results), what, next="name the directory with plan.json: --results DIR"))
        self._reader, self._jobs = Reader(results), SlurmJobs()

    def look(self) -> LadderState:
        """Return what is known now."""
        state = self._reader.read()
        return replace(state, slurm=self._jobs.look(state.slurm_ids))

    def look_once(self) -> LadderState:
        """Return what is known now, with Slurm's answer to one question. Raises UserError without a plan."""
        state = self.look()
        if state.plan is None:
            raise UserError(no_plan(state))
        self._jobs.wait()
        return self.look()


def watch(results: Path, every_s: float) -> int:
    """Show the ladder until it ends, or the user ends the view; return the exit code."""
    view = View(results)
    try:
        with _quit_on_signals():
            # A terminal that cannot move its cursor gets lines.
            if sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
                return _on_terminal(view, every_s, sys.stdout)
            return _in_pipe(view, every_s)
    except Quit as end:
        return end.code
    finally:
        end_descendants(within_s=1.0)  # a squeue that has not answered


def show_once(results: Path) -> int:
    """Print one picture."""
    console = Console()
    width = console.width if console.is_terminal else WIDTH_IN_A_PIPE
    _print_lines(screen_of(View(results).look_once(), width), sys.stdout)
    return 0


class Quit(Exception):
    """The user, or a signal, ends the view. code: the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@contextlib.contextmanager
def _quit_on_signals() -> Iterator[None]:
    """Let signals end the view with Quit."""

    def end(number: int, _frame: FrameType | None) -> None:
        for each in ENDS:
            signal.signal(each, signal.SIG_IGN)  # nothing interrupts the end
        raise Quit(ENDS[signal.Signals(number)])

    # nohup ignores SIGHUP; a view that Ctrl-Z stopped would leave the terminal as it is.
    before: dict[Any, Any] = {signal.SIGTSTP: signal.signal(signal.SIGTSTP, signal.SIG_IGN)}
    before |= {each: signal.signal(each, end) for each in ENDS if signal.getsignal(each) != signal.SIG_IGN}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _on_terminal(view: View, every_s: float, stream: TextIO) -> int:
    code, state = 0, view.look()
    keys = sys.stdin if sys.stdin is not None and sys.stdin.isatty() else None
    try:
        with Terminal(stream, keys) as terminal:
            while not state.is_over:
                terminal.show(_screen(state, *terminal.size, FOOTER))
                terminal.wait(every_s)
                state = view.look()
    except Quit as end:
        code = end.code
    with contextlib.suppress(OSError):  # the terminal is gone
        _print_lines(_screen(state, _size(stream)[0], None, ""), stream)
    return code


def _screen(state: LadderState, width: int, height: int | None, footer: str) -> Sequence[Text]:
    if state.plan is not None:
        return screen_of(state, width, height, footer)
    problem = no_plan(state)
    said = [f"{problem.what}: {problem.where}", *str(problem).splitlines()[1:]]
    wrapped = [part for line in said for part in textwrap.wrap(line, width, subsequent_indent=" " * 11)]
    return [Text(line) for line in [*wrapped, "", *([footer] if footer else [])]][:height]


class Terminal:
    """The alternate screen of a terminal, and its keys."""

    def __init__(self, stream: TextIO, keys: TextIO | None) -> None:
        self._stream, self._keys = stream, keys
        self._modes = termios.tcgetattr(keys) if keys is not None else None
        self._shown: list[str] = []
        self._shown_size = (0, 0)

    def __enter__(self) -> Terminal:
        if self._keys is not None:
            tty.setcbreak(self._keys, termios.TCSANOW)
        self._write(OPEN)
        return self

    def __exit__(self, *error: object) -> None:
        self._write(CLOSE)
        if self._modes is not None and self._keys is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSANOW, self._modes)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        return _size(self._stream)

    def show(self, lines: Sequence[Text]) -> None:
        """Write the lines that differ from those on the screen; all of them if its size has changed."""
        anew = self.size != self._shown_size
        before, new = [] if anew else self._shown, _rendered(lines, self._stream)
        written = ["\x1b[2J"] if anew else []
        for row in range(max(len(new), len(before))):
            line = new[row] if row < len(new) else ""
            if row >= len(before) or before[row] != line:
                written.append(f"\x1b[{row + 1};1H{line}\x1b[K")
        self._shown, self._shown_size = new, self.size
        self._write("".join(written))

    def wait(self, seconds: float) -> None:
        """Wait so long, or until the size changes. Raises Quit if a key ends the view."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0 and self.size == self._shown_size:
            keys = [] if self._keys is None else [self._keys.fileno()]
            if select.select(keys, [], [], min(left_s, 0.25))[0]:
                try:
                    pressed = os.read(keys[0], 1024)
                except OSError:
                    pressed = b""
                if not pressed:
                    self._keys = None  # the terminal is gone, or not ours; a signal ends the view
                if any(key in QUIT_KEYS for key in pressed):
                    raise Quit(0)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone: a signal follows
            self._stream.write(text)
            self._stream.flush()


def _size(stream: TextIO) -> tuple[int, int]:
    """Return columns and lines; 80 and 24 if the terminal does not tell them."""
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except OSError:
        columns, lines = 0, 0
    return columns or 80, lines or 24


def _rendered(lines: Sequence[Text], stream: TextIO) -> list[str]:
    """Return styled lines as they are written to a stream."""
    console = Console(file=stream, highlight=False, emoji=False)
    found = []
    for line in lines:
        with console.capture() as capture:
            console.print(line, end="", soft_wrap=True)
        found.append(capture.get())
    is_unicode = (stream.encoding or "").lower().replace("-", "").startswith("utf")
    return found if is_unicode else [plain(line) for line in found]


def _print_lines(lines: Sequence[Text], stream: TextIO) -> None:
    for line in _rendered(lines, stream):
        print(line, file=stream)
    stream.flush()


def _in_pipe(view: View, every_s: float) -> int:
    changes, has_said = Changes(), False
    try:
        while True:
            state = view.look()
            if state.plan is not None:
                lines = changes.new_lines(state)
            else:
                lines = [] if has_said else [f"{no_plan(state).where}: {no_plan(state).what}; waiting for it"]
                has_said = True
            for line in lines:
                print(line, flush=True)
            if state.is_over:
                return 0
            time.sleep(every_s)
    except BrokenPipeError:  # `| head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def no_plan(state: LadderState) -> Problem:
    """Return why there is nothing to show, and what to do."""
    path = state.results / "plan.json"
    if any(problem.startswith(str(path)) for problem in state.problems):
        try:
            read_plan(path)
        except UserError as error:
            # The ladder may be another user's: what to do with one's own is not what to do here.
            return replace(error.problems[0], next=UNREADABLE if isinstance(error.__cause__, OSError) else DAMAGED)
    return Problem(str(path), NOT_YET, next=FIRST)
