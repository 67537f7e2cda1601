"""What all command lines share."""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

from ddp_ladder.messages import UserError

P = ParamSpec("P")


def command(main: Callable[P, int]) -> Callable[P, int]:
    """Show a user's mistake as its message alone and exit with 1."""

    @functools.wraps(main)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> int:
        print_what_can_be_printed()
        try:
            return main(*args, **kwargs)
        except UserError as error:
            print(error, file=sys.stderr)
            return 1

    return wrapped


def print_what_can_be_printed() -> None:
    """From now on a character that the terminal's encoding does not have costs that character, not the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def put_this_python_first() -> None:
    """Make ``python`` mean this interpreter in every child, also where its environment is not activated."""
    here = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join((here, os.environ.get("PATH", os.defpath)))
