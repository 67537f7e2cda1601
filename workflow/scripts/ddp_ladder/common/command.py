"""Shared behaviour of all command lines: help, exit on a user's mistake, and on a full disk."""

from __future__ import annotations

import argparse
import functools
import io
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

from ddp_ladder.common.files import NotWritten
from ddp_ladder.common.messages import UserError

P = ParamSpec("P")


def command(main: Callable[P, int]) -> Callable[P, int]:
    """Decorate a main function: UserError and NotWritten print their message alone and return exit code 1."""

    @functools.wraps(main)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> int:
        print_what_can_be_printed()
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


def parser_of(text: str | None, example: str = "") -> argparse.ArgumentParser:
    """Return the parser of a command line. text: its help, shown as it is; example: a use of it, below the options."""
    epilog = f"example: python workflow/scripts/{example}" if example else None
    raw = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=text, epilog=epilog, formatter_class=raw)


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
    here = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join((here, os.environ.get("PATH", os.defpath)))
