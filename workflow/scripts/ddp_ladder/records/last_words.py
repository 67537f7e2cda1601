"""The last lines that a run's processes printed: often the only reason given with a bare exit code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ddp_ladder.common.messages import printable
from ddp_ladder.common.redaction import redacted
from ddp_ladder.records.case import is_consequence
from ddp_ladder.records.words import TRACEBACK

_TAIL_BYTES = 64 * 1024
_LONGEST = 300
# The start of torchrun's own report of a rank that ended.
_OF_TORCHRUN = re.compile(r"^[WE][0-9]{4} [0-9:.]+ .*torch/distributed/elastic/", re.MULTILINE)

# The prefix that torch puts before each line of an uncaught exception in a process group.
_OF_RANK = re.compile(r"\[rank([0-9]+)\]:")


def last_words(log: Path, rank: int | None = None) -> str:
    """Return ``; the last line that was printed: ...`` in a log, by this rank if one is given; empty if it is blank."""
    line = last_line(log, rank)
    return f"; the last line that was printed: {line}" if line else ""


def printed(log: Path) -> str:
    """Return the end of a log up to torchrun's report of a failure, made printable; empty if there is no log."""
    # A progress bar rewrites its line; each state of it becomes a separate line here.
    text = re.sub(r"[\r\n]+", "\n", tail(log))
    report = _OF_TORCHRUN.search(text)
    return redacted(printable(text[: report.start()] if report else text))


def last_line(log: Path, rank: int | None = None) -> str:
    """Return the last line of a log before torchrun's report of the failure, cut if long; empty if there is none.

    rank: one that failed by itself; the ranks of an agent share a log. Skip lines that torch has marked as another
    rank's, and those that only report the loss of another rank, unless there are no others.
    """
    lines = [line for line in printed(log).split("\n") if line.strip()]
    if rank is not None:
        lines = [line for line in lines if not (marked := _OF_RANK.match(line)) or int(marked[1]) == rank]
        lines = [*lines[-1:], *_last_of_no_victim(lines)]
    return _cut(lines[-1].strip()) if lines else ""


def _last_of_no_victim(lines: Sequence[str]) -> list[str]:
    """Return the last line that is no unmarked report of a lost rank, nor in its traceback, if there is one."""
    in_traceback = False
    for line in reversed(lines):
        if in_traceback and line.startswith((" ", "\t")):
            continue
        if is_consequence(line) and not _OF_RANK.match(line):
            in_traceback = True
        elif in_traceback and TRACEBACK in line:
            in_traceback = False
        else:
            return [line]
    return []


def last_lines(log: Path, most: int) -> list[str]:
    """Return the last lines of a log that are not blank, each cut if long; of a progress bar, its last state."""
    lines = [printable(line.rstrip().rpartition("\r")[2]) for line in redacted(tail(log)).split("\n")]
    return [_cut(line) for line in lines if line.strip()][-most:]


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def tail(log: Path) -> str:
    """Return the last 64 KiB of a log; empty if there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
