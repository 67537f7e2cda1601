"""The lines of a run that show why it failed, verbatim, and the last lines that its processes printed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ddp_ladder.common.messages import numbered, printable
from ddp_ladder.common.redaction import redacted
from ddp_ladder.records.record import Evidence, Failure
from ddp_ladder.records.signatures import TRACEBACK, Words, cut, is_consequence

MOST_LINES = 5
_MODULES = re.compile(r"^(?:[A-Za-z_]\w*\.)+(?=[A-Z]\w*\b)")  # before the name of an exception
_FRAME = re.compile(r'^\s*File "([^"]+)", line \d+')
_OF_LIBRARIES = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3|^<|/ddp_ladder_instrument/|/instrument\.py$")
_CURRENT = "Current thread"  # the fault handler's mark of the thread that crashed
_CRASH = re.compile(r"Fatal Python error: |terminate called after throwing|.*: Assertion `.*' failed")
_CRASH_LINES = 200  # of the threads that the fault handler shows
_MARKS = re.compile(r"^[\s^~]*$")  # below a statement of a traceback
_JOINTS = {  # between an exception and another one that was raised because of it
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
}


def quote(words: Words, lines: Iterable[str]) -> tuple[Evidence, ...]:
    """Return lines of one speaker."""
    return tuple(Evidence(speaker=words.place, line=cut(redacted(line))) for line in lines if line.strip())[:MOST_LINES]


def with_place(words: Words, index: int) -> tuple[Evidence, ...]:
    """Return a line, after the statement of the script that raised it if it ends a traceback."""
    return quote(words, (*_statement(words.lines, index), words.lines[index]))


def where_raised(printed: Sequence[Words], rank: int | None, exception: str) -> tuple[Evidence, ...]:
    """Return an exception's last line as the log has it, with its statement; empty if no log has it."""
    found = raised_at(printed, rank, exception)
    return with_place(replace(found[0], rank=rank), found[1]) if found else ()


def raised_at(printed: Sequence[Words], rank: int | None, exception: str) -> tuple[Words, int] | None:
    """Return where the log has an exception: the words, and the index of its line; None if no log has it."""
    own = [words for words in printed if words.rank == rank and rank is not None]
    for words in (*own, *(words for words in printed if words.rank is None)):
        for index in reversed(range(len(words.lines))):
            if is_line_of(words.lines[index], exception):
                return words, index
    return None


def traceback_to(lines: Sequence[str], end: int) -> range:
    """Return the indices of the traceback that ends there, with those of the exceptions that led to it.

    Of that line alone, if there is no traceback directly above it.
    """
    first = _header(lines, end)
    if first is None or any(line[:1].strip() for line in lines[first + 1 : end]):
        return range(end, end + 1)
    while (above := _above(lines, first)) is not None and lines[above].strip() in _JOINTS:
        if (earlier := _header(lines, above)) is None:
            break
        first = earlier
    return range(first, end + 1)


def ending(lines: Sequence[str]) -> range:
    """Return the indices of the traceback with which an output ends, else of its last line.

    Tracebacks at the end that only report the loss of another rank are left out: ranks may share a log.
    """
    end = _above(lines, len(lines))
    while end is not None:
        found = traceback_to(lines, end)
        if len(found) == 1 or not is_consequence(lines[end]):
            return found
        end = _above(lines, found.start)
    return range(0)


def _header(lines: Sequence[str], before: int) -> int | None:
    return next((index for index in range(before - 1, -1, -1) if TRACEBACK in lines[index]), None)


def _above(lines: Sequence[str], before: int) -> int | None:
    """Return the index of the last line before this one that is not blank."""
    return next((index for index in range(before - 1, -1, -1) if lines[index].strip()), None)


def caught(printed: Sequence[Words], node: str | None = None, rank: int | None = None) -> tuple[Evidence, ...]:
    """Return the last exception, with its statement, whose traceback a script printed itself; empty if it did not.

    node and rank: words of others are left out, if they are known. The ranks of a node may share a log without marks.
    """
    for words in printed:
        elsewhere = (node is not None and words.node != node) or (rank is not None and words.rank not in (rank, None))
        if words.speaker not in ("rank", "agent") or elsewhere:
            continue
        for index in reversed(range(len(words.lines))):
            line = words.lines[index]
            if line[:1].isalpha() and _statement(words.lines, index) and not is_consequence(line):
                return with_place(words, index)
    return ()


def with_caught(failure: Failure, printed: Sequence[Words]) -> Failure:
    """Return the failure of ranks that ended well, with the exception that they may have ended because of."""
    if not (shown := caught(printed, failure.node, failure.rank)):
        return failure
    first = (
        "the script printed an exception: if it ended because of it, fix its cause, and let the script raise it "
        "instead of ending with exit code 0; then start snakemake again"
    )
    return failure.replace(next=numbered((first, failure.next)), evidence=shown)


def crash(printed: Sequence[Words]) -> tuple[Evidence, ...]:
    """Return what Python's fault handler or the C++ runtime printed as a process crashed; empty if they did not."""
    for words in printed:
        for index, line in enumerate(words.lines):
            if not _CRASH.match(line):
                continue
            following = words.lines[index + 1 : index + 1 + _CRASH_LINES]
            current = next((k for k, one in enumerate(following) if one.startswith(_CURRENT)), 0)
            frames = [
                one
                for one in following[current:]
                if (frame := _FRAME.match(one)) and not _OF_LIBRARIES.search(frame[1])
            ]
            what = [one for one in following[:1] if one.lstrip().startswith("what():")]
            return quote(words, (line, *what, *frames[:1]))
    return ()


def is_line_of(line: str, exception: str) -> bool:
    """Return True if a line of a traceback is the beginning of this exception: ``ValueError: no such file``.

    The message may be missing, or begin on the next line.
    """
    name = exception.partition(":")[0]
    if name not in line:
        return False
    # The rank reports its exception without secrets.
    text = " ".join(_MODULES.sub("", redacted(line).strip()).split())
    return text == exception or (text.startswith(f"{name}:") and exception.startswith(text))


def _statement(lines: Sequence[str], end: int) -> tuple[str, ...]:
    """Return place and statement of the last frame that is not of a library, of the traceback that ends there."""
    frames = []
    for index in range(end - 1, -1, -1):
        frame = _FRAME.match(lines[index])
        if frame:
            frames.append((index, frame[1]))
        elif lines[index].strip() and not lines[index].startswith((" ", "\t")):
            break
    own = [index for index, file in frames if not _OF_LIBRARIES.search(file)] or [index for index, _ in frames]
    if not own:
        return ()
    following = lines[own[0] + 1 : own[0] + 2]
    return (lines[own[0]], *(line for line in following if not _FRAME.match(line) and not _MARKS.match(line)))


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
