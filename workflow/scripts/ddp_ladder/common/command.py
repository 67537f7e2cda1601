"""Shared behaviour of all command lines: help, exit on a user's mistake, and on a full disk."""

from __future__ import annotations

import argparse
import functools
import io
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ddp_ladder import __version__
from ddp_ladder.common.files import FULL, NotWritten
from ddp_ladder.common.messages import BEHIND_PIPE, Problem, UserError, notify
from ddp_ladder.common.process import die_with_parent

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

T = TypeVar("T")
Option = Callable[[argparse.ArgumentParser], object]
"""What adds one option, or several, to a parser."""


def option(*names: str, **how: Any) -> Option:
    """Return an option of a command line. how: as ArgumentParser.add_argument takes it."""
    return lambda parser: parser.add_argument(*names, **how)


PLAN = option("--plan", type=Path, required=True, help="plan.json; the results are beside it")
RESULTS = option("--results", type=Path, default=Path("results"), help="the ladder's directory (default: %(default)s)")


def command(
    example: str, *options: Option, of_job: bool = False
) -> Callable[[Callable[[argparse.Namespace], int]], Callable[..., int]]:
    """Decorate what a command line does: it becomes ``main(argv=None)``, whose help is the module's docstring.

    example: a use of it, below the options. of_job: it trains or follows jobs, and ends with the Snakemake that
    started it. UserError and NotWritten print their message alone and return exit code 1. Standard output that does
    not fit on a full disk is lost with one warning; the command goes on.
    """

    def decorated(work: Callable[[argparse.Namespace], int]) -> Callable[..., int]:
        @functools.wraps(work)
        def main(argv: Sequence[str] | None = None) -> int:
            parser = parser_of(sys.modules[work.__module__].__doc__, example, *options)

            def parsed() -> int:
                arguments = parser.parse_args(argv)
                if of_job:
                    os.environ.pop(BEHIND_PIPE, None)  # the watch reads the job's log by its lines
                    die_with_parent(signal.SIGTERM)
                return work(arguments)

            return guarded(parsed)

        return main

    return decorated


job_command = functools.partial(command, of_job=True)


def guarded(work: Callable[[], int]) -> int:
    """Return the exit code of what a command line does, with its output made safe, and its errors in words."""
    print_what_can_be_printed()
    _keep_output_from_failing()
    try:
        code = work()
    except (UserError, NotWritten) as error:
        notify(str(error.problem if isinstance(error, NotWritten) else error))
        code = 1
    sys.stdout.flush()
    return code


def read_to_show(read: Callable[[Path], T], file: Path, what: str, target: str) -> T:
    """Return what a command shows. what: in words. target: makes the file again. Raises UserError."""
    try:
        return read(file)
    except (OSError, ValueError) as error:
        again = f"run it again: snakemake {target}"
        raise UserError(Problem(str(file), f"there is no {what} to show", found=str(error), next=again)) from error


def parser_of(text: str | None, example: str = "", *options: Option) -> argparse.ArgumentParser:
    """Return the parser of a command line. text: its help, shown as it is; example: a use of it, below the options."""
    epilog = f"example: python workflow/scripts/{example}" if example else None
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=text, epilog=epilog, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"ddp-ladder {__version__}")
    for add in options:
        add(parser)
    return parser


def node_parser(text: str | None, example: str, *options: Option) -> argparse.ArgumentParser:
    """Return the parser of a program that a scale's job starts on each node."""
    of_slurm, words = os.environ.get("SLURM_NODEID"), "which of the nodes this is, from 0 (default: as Slurm says)"
    return parser_of(
        text,
        example,
        option("--run", type=Path, required=True, help="the directory with the run.json"),
        option("--node-rank", type=int, default=of_slurm, required=of_slurm is None, help=words),
        *options,
    )


class _Output(io.FileIO):
    """Standard output that a full disk does not break: what does not fit is dropped, with one warning."""

    _has_warned = False

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in FULL:
                raise
            if not self._has_warned:
                self._has_warned = True
                print(f"standard output: it cannot be written: {error.strerror}; the rest is lost", file=sys.stderr)
            return memoryview(data).nbytes


def _keep_output_from_failing() -> None:
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper) and stream is sys.__stdout__:
        buffer = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=stream.line_buffering)


def leave_lost_terminal() -> None:
    """Send output to /dev/null if the terminal, or the reader of a pipe, is gone: writing would raise an error."""
    for descriptor in (1, 2):
        poll = select.poll()
        poll.register(descriptor, 0)
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0)):
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, descriptor)
            os.close(devnull)


def print_what_can_be_printed() -> None:
    """Make printing safe: escape characters that the terminal's encoding lacks, and ignore a closed terminal."""
    leave_lost_terminal()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def put_this_python_first() -> None:
    """Put this interpreter first in PATH, so that children find it as ``python`` without an activated environment."""
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
