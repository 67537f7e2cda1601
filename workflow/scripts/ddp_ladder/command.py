"""What all command lines share."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence

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
