"""What all command lines share: how a user's mistake and a full disk end them."""

from __future__ import annotations

import functools
import io
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec

from ddp_ladder.files import FULL, NotWritten
from ddp_ladder.messages import UserError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

P = ParamSpec("P")


def command(main: Callable[P, int]) -> Callable[P, int]:
    """Show a user's mistake, and a file that cannot be written, as its message alone and exit with 1.

    Output that a full disk does not take is said to be lost; it costs nothing else.
    """

    @functools.wraps(main)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> int:
        print_what_can_be_printed()
        _keep_output_from_failing()
        try:
            code = main(*args, **kwargs)
        except UserError as error:
            print(error, file=sys.stderr)
            code = 1
        except NotWritten as error:
            print(error.problem, file=sys.stderr)
            code = 1
        sys.stdout.flush()
        return code

    return wrapped


class _Output(io.FileIO):
    """Standard output, into a file as a rule: what a full disk does not take is lost, and that is said once."""

    _is_said = False

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in FULL:
                raise
            if not self._is_said:
                self._is_said = True
                print(f"standard output: it cannot be written: {error.strerror}; the rest is lost", file=sys.stderr)
            return memoryview(data).nbytes


def _keep_output_from_failing() -> None:
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper) and stream is sys.__stdout__:
        buffer = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=stream.line_buffering)


def leave_lost_terminal() -> None:
    """From now on what is printed goes nowhere if the terminal, or a pipe's reader, is gone: it would be an error."""
    for descriptor in (1, 2):
        poll = select.poll()
        poll.register(descriptor, 0)
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0)):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)


def print_what_can_be_printed() -> None:
    """From now on a character that the terminal's encoding does not have costs that character, not the command.

    Neither does a terminal that is gone.
    """
    leave_lost_terminal()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def put_this_python_first() -> None:
    """Make ``python`` mean this interpreter in every child, also where its environment is not activated."""
    here = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join((here, os.environ.get("PATH", os.defpath)))
