"""Write the record before os._exit, which scripts use if a clean end hangs."""

from __future__ import annotations

import os
from collections.abc import Callable


def on_hard_exit(record: Callable[[int], object]) -> None:
    """Call ``record`` with the exit code before os._exit ends this process, but not in a forked child."""
    process = os.getpid()
    hard_exit = os._exit

    def _exit(status: int) -> None:
        if os.getpid() == process:
            os._exit = hard_exit  # once, whatever happens in between
            record(status)
        hard_exit(status)

    os._exit = _exit  # type: ignore[assignment]
