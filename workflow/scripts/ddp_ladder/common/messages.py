"""Messages for a user's mistake: what is wrong, where, what is allowed, what to do next."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TextIO

from ddp_ladder_instrument.redaction import redacted

from ddp_ladder.common.formats import hostlist

MOST_COLUMNS = 96
MOST_NAMED = 16  # that an advice names: as many as a job is submitted without, at most
BEHIND_PIPE = "DDP_LADDER_COLUMNS"  # of the terminal, for a rule's command whose output goes through tee
_COMMAND = re.compile(r"`[^`]*`")
_LABEL = re.compile(r"  \w+ {2,}")
_STEP = re.compile(r"\d\. ")
_BOX_SIGNS = len("| verdict   ") + len(" |")


@dataclass(frozen=True)
class Problem:
    """One mistake in one place."""

    where: str  # file, line if known, and key: ``config/config.yaml, line 14: repeats``
    what: str
    found: str | None = None
    allowed: str | None = None
    next: str | None = None
    lost: str | None = None  # what is lost by it

    def __str__(self) -> str:
        details = {label: getattr(self, label) for label in ("found", "allowed", "lost", "next")}
        lines = [f"  {label:<8} {text}" for label, text in details.items() if text is not None]
        return redacted(printable("\n".join([f"{self.where}: {self.what}", *lines])))


class UserError(Exception):
    """A mistake that the user can fix; shown as its message alone, never with a traceback."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n\n".join(str(problem) for problem in self.problems))


_CONTROL_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # a colour, a move of the cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # a title, a link
    r"|\x1b.?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]"  # all control characters but tabs and line ends
    r"|[\u2028-\u202e\u2066-\u2069]"  # Unicode line ends and changes of writing direction
)


def printable(text: str) -> str:
    """Return text without control sequences (colours, bells, titles); tabs and line ends stay.

    Apply it to all foreign text: on reading (files.read_json, slurm.query.run_command), and in messages.
    """
    return _CONTROL_SEQUENCE.sub("", text)


def notify(text: str) -> None:
    """Print a text for the user on standard error, at once; on a terminal it is fitted to the width."""
    print(for_terminal(text, sys.stderr), file=sys.stderr, flush=True)


def stop(error: UserError | Problem) -> NoReturn:
    """Print a message and end this process with exit code 1."""
    notify(str(error))
    sys.exit(1)


def columns(stream: TextIO | None = None) -> int:
    """Return how wide texts on standard output, or stream, are: as the terminal, at most 96; 96 without a terminal."""
    stream, own = stream or sys.stdout, 0
    if not stream.isatty():
        return int(os.environ.get(BEHIND_PIPE, MOST_COLUMNS))
    with contextlib.suppress(OSError):  # shutil asks standard output, which a rule sends to its log
        own = os.get_terminal_size(stream.fileno()).columns
    return min(MOST_COLUMNS, shutil.get_terminal_size((own or MOST_COLUMNS, 24)).columns)


def fitted(text: str, width: int, first: str = "", then: str = "    ") -> str:
    """Return lines that are not wider, broken between words, but not inside `a command`. first, then: their indents."""
    wrapper = textwrap.TextWrapper(width, initial_indent=first, subsequent_indent=then)
    wrapper.break_on_hyphens = wrapper.break_long_words = False
    return wrapper.fill(_COMMAND.sub(lambda quoted: quoted[0].replace(" ", "\0"), text)).replace("\0", " ")


def for_terminal(text: str, stream: TextIO) -> str:
    """Return text whose lines fit the terminal, each indented below its label; as it is for a pipe or a file."""
    if not stream.isatty() and BEHIND_PIPE not in os.environ:
        return text
    lines, width = text.split("\n"), columns(stream)
    indents = (" " * len(label[0]) if (label := _LABEL.match(line)) else "    " for line in lines)
    return "\n".join(fitted(line, width, then=indent) for line, indent in zip(lines, indents, strict=True))


def box(rows: Iterable[tuple[str, str | None]], stream: TextIO | None = None) -> str:
    """Return the ladder's box with labelled texts: why it stops and what to do. A text may have several lines.

    stream: where it is shown, if not on standard output.
    """
    lines, width = [], columns(stream) - _BOX_SIGNS
    for label, text in rows:
        wrapped = [part for line in redacted(printable(str(text))).split("\n") for part in _wrapped(line, width)]
        for index, part in enumerate(wrapped or [""]):
            lines.append(f"| {label if index == 0 else '':<9} {part:<{width}} |")
    edge = "+" + "-" * (width + _BOX_SIGNS - 2) + "+"
    return "\n".join((edge, *lines, edge))


def numbered(steps: Sequence[str]) -> str:
    """Return steps as the lines of one text, numbered if there are several."""
    return steps[0] if len(steps) == 1 else "\n".join(f"{k}. {step}" for k, step in enumerate(steps, start=1))


def _wrapped(line: str, width: int) -> list[str]:
    """Return a line of the box as lines that fit; those of a numbered step are indented below its text."""
    step = _STEP.match(line)
    return textwrap.wrap(line, width, break_on_hyphens=False, subsequent_indent=" " * len(step[0]) if step else "")


def leave_out(*nodes: str) -> str:
    """Return how to run without nodes: ``leave node[1-2] out (slurm.exclude: node[1-2] in cluster.yaml)``."""
    names = hostlist(nodes)
    if len(nodes) > MOST_NAMED:
        return "leave these nodes out (slurm.exclude in cluster.yaml; the JSON of the results has them all as `place`)"
    return f"leave {names or 'the node'} out (slurm.exclude{names and f': {names}'} in cluster.yaml)"


def did_you_mean(word: str, allowed: Iterable[str]) -> str | None:
    """Return ``did you mean "x"?`` for the closest allowed word, or None when none is close."""
    matches = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    return f'did you mean "{matches[0]}"?' if matches else None
