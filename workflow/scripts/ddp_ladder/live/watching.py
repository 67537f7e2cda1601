"""The live view: on a terminal, as lines in a pipe, or once. It ends when the ladder does."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

from ddp_ladder.common.lifetime import end_descendants
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.live.changes import Changes
from ddp_ladder.live.picture import picture_of
from ddp_ladder.live.reader import Reader
from ddp_ladder.live.screen import FOOTER, plain, screen_of
from ddp_ladder.live.slurm_jobs import SlurmJobs
from ddp_ladder.live.state import LadderState
from ddp_ladder.live.terminal import Events, Quit, Terminal, keyboard
from ddp_ladder.plan.file import read_plan

WIDTH_IN_A_PIPE = 80
ALL_LINES = 10_000
NOT_YET = "there is no plan yet"
FIRST = "start the ladder, `snakemake --cores all` or `snakemake --profile profiles/slurm`, or name its --results"
DAMAGED = (
    "whoever runs this ladder starts it again, which writes the plan anew; a ladder of another version of ddp-ladder "
    "is watched with that version"
)
UNREADABLE = "ask whoever runs this ladder to make it readable"


class View:
    """What is known of a ladder, with Slurm's last answer. Raises UserError for a file in place of a directory."""

    def __init__(self, results: Path) -> None:
        if os.path.isfile(results):
            what = "this is a file, not the results directory of a ladder"
            raise UserError(Problem(str(results), what, next="name the directory with plan.json: --results DIR"))
        self._reader = Reader(results)
        self._jobs = SlurmJobs()

    def look(self) -> LadderState:
        """Return what is known now."""
        state = self._reader.read()
        return replace(state, slurm=self._jobs.look(state.slurm_ids))

    def look_once(self) -> LadderState:
        """Return all that can be known now, with Slurm's answer to one question. Raises UserError without a plan."""
        state = self._reader.read(everything=True)
        if state.plan is None:
            raise UserError(_no_plan(state))
        self._jobs.look(state.slurm_ids)
        self._jobs.wait()
        return replace(state, slurm=self._jobs.look(state.slurm_ids))


def watch(results: Path, every_s: float) -> int:
    """Show the ladder until it ends, or the user ends the view; return the exit code."""
    view = View(results)
    try:
        # A terminal that cannot move its cursor gets lines.
        if sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
            return _on_terminal(view, every_s, sys.stdout)
        return _in_pipe(view, every_s)
    finally:
        end_descendants(within_s=1.0)  # a squeue that has not answered


def show_once(results: Path) -> int:
    """Print one picture."""
    console = Console(highlight=False, emoji=False)
    width = console.width if console.is_terminal else WIDTH_IN_A_PIPE
    state = View(results).look_once()
    encoding = (sys.stdout.encoding or "").lower()
    for line in screen_of(picture_of(state), width, ALL_LINES, footer=""):
        console.print(line if encoding.startswith("utf") else Text(plain(line.plain)), soft_wrap=True)
    return 0


def _on_terminal(view: View, every_s: float, stream: TextIO) -> int:
    terminal, code = Terminal(stream, keyboard()), 0
    with terminal:
        try:
            state, anew = view.look(), False
            while not state.is_over:
                terminal.show(_screen(state, *terminal.size, FOOTER), anew)
                event = terminal.wait(every_s)
                anew = event == "redraw"
                state = state if anew else view.look()
        except Quit as end:
            code = end.code
    terminal.print(_screen(state, terminal.size[0], ALL_LINES, footer=""))
    return code


def _screen(state: LadderState, width: int, height: int, footer: str) -> Sequence[Text]:
    if state.plan is not None:
        return screen_of(picture_of(state), width, height, footer)
    problem = _no_plan(state)
    said = [f"{problem.what}: {problem.where}", *str(problem).splitlines()[1:]]
    wrapped = [part for line in said for part in textwrap.wrap(line, width, subsequent_indent=" " * 11)]
    return [Text(line) for line in [*wrapped, "", *([footer] if footer else [])]][:height]


def _in_pipe(view: View, every_s: float) -> int:
    changes, has_said = Changes(), False
    with Events(None) as events:
        try:
            while True:
                state = view.look()
                if state.plan is not None:
                    _print(changes.new_lines(state))
                elif not has_said:
                    has_said = True
                    _print([f"{_no_plan(state).where}: {_no_plan(state).what}; waiting for it"])
                if state.is_over:
                    return 0
                events.wait(every_s)
        except Quit as end:
            return end.code
        except BrokenPipeError:  # `| head`
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        print(line)
    sys.stdout.flush()


def _no_plan(state: LadderState) -> Problem:
    path = state.results / "plan.json"
    if any(problem.startswith(str(path)) for problem in state.problems):
        try:
            read_plan(path)
        except UserError as error:
            # The ladder may be another user's: what to do with one's own is not what to do here.
            return replace(error.problems[0], next=UNREADABLE if isinstance(error.__cause__, OSError) else DAMAGED)
    return Problem(str(path), NOT_YET, next=FIRST)
