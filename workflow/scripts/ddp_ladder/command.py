"""What all command lines share."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ddp_ladder.messages import UserError

Main = Callable[[Sequence[str] | None], int]


def command(main: Main) -> Main:
    """Show a user's mistake as its message alone and exit with 1."""

    @functools.wraps(main)
    def wrapped(argv: Sequence[str] | None = None) -> int:
        try:
            return main(argv)
        except UserError as error:
            print(error, file=sys.stderr)
            return 1

    return wrapped


def put_this_python_first() -> None:
    """Make ``python`` mean this interpreter in every child, also where its environment is not activated."""
    here = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join((here, os.environ.get("PATH", os.defpath)))
