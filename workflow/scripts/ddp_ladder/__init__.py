"""ddp-ladder: climb a PyTorch DDP training from one GPU to many nodes, one proven stage at a time."""

from __future__ import annotations

import gc
import sys
from types import TracebackType

__version__ = "0.1.0"


def _print_unless_interrupted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught exception, but no Ctrl-C: the start of Snakemake reports it once, for all its processes."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _print_unless_interrupted  # here, as Ctrl-C may come while a program still imports its modules

# The collector would look at the objects of the imports again and again: a fifth of the time of a start.
gc.set_threshold(50_000)
