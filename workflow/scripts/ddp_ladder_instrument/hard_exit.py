"""os._exit: scripts use it where a clean end hangs; their record is then written just before."""

from __future__ import annotations

import os
from collections.abc import Callable


def on_hard_exit(record: Callable[[int], object]) -> None:
    """Call ``record`` with the exit code before os._exit ends this process; a forked child's ends only itself."""
    process = os.getpid()
    hard_exit = os._exit

    def _exit(status: int) -> None:
        if os.getpid() == process:
            os._exit = hard_exit  # once, whatever happens in between
            record(status)
        hard_exit(status)

    os._exit = _exit  # type: ignore[assignment]
