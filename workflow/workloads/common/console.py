"""Output of rank 0: lines, and a progress bar on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from common.distributed import World

Item = TypeVar("Item")


def say(world: World, *lines: str) -> None:
    """Print on rank 0 only."""
    if world.is_first:
        print(*lines, sep="\n", flush=True)


def progress(world: World, steps: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Return an iterator over the steps, with tqdm's bar on rank 0 if there are a terminal and tqdm."""
    if not (world.is_first and sys.stderr.isatty()):
        return iter(steps)
    try:
        from tqdm import tqdm
    except ImportError:
        return iter(steps)
    return iter(tqdm(steps, total=total, desc=what, leave=False, unit="step"))
