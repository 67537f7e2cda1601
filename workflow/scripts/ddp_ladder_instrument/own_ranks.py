"""Ranks that a script starts itself with torch.multiprocessing: each is measured like a launcher's."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ddp_ladder_instrument.hooks import patch
from ddp_ladder_instrument.job import read_job
from ddp_ladder_instrument.measurement import Measurement
from ddp_ladder_instrument.program import Program

PACKAGE_DIRECTORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_hooked: list[Measurement] = []
"""Whose hooks this process has: one, or none before they are installed."""


@dataclass(frozen=True)
class OwnRank:
    """What runs in place of the script's function, in a process of its own."""

    function: Callable[..., Any]
    program: Program

    def __call__(self, *arguments: Any) -> None:
        """Run the function and record; raises what it raised."""
        if PACKAGE_DIRECTORY in sys.path:
            sys.path.remove(PACKAGE_DIRECTORY)
        measurement = _measurement(self.program)
        began_at = measurement.steps.count
        ended_with: BaseException | None = None
        try:
            self.function(*arguments)
        except BaseException as error:
            ended_with = error
        ended_with = measurement.end(ended_with)
        # Other helpers than ranks form no group and step no optimizer; the file belongs to a rank then. The steps that
        # a forked process finds made are not its own.
        if measurement.process_group_s is not None and measurement.steps.count and not began_at:
            measurement.write()
        if ended_with is not None:
            raise ended_with


def _measurement(program: Program) -> Measurement:
    """A process that was forked has its parent's hooks, and goes on with them; one that was spawned has none."""
    if _hooked:
        (measurement,) = _hooked
        measurement.begin_in_fork()
        return measurement
    measurement = Measurement(read_job(), program, time.time())
    measurement.watch()
    return measurement


def patch_spawn(measurement: Measurement) -> str | None:
    """Measure what torch.multiprocessing.spawn and start_processes start, and count it."""
    _hooked[:] = [measurement]

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def start_processes(fn: Any, args: Any = (), nprocs: int = 1, *more: Any, **options: Any) -> Any:
            measurement.own_processes += nprocs
            with _findable():
                return original(OwnRank(fn, measurement.program), args, nprocs, *more, **options)

        return start_processes

    # By name: torch.multiprocessing.spawn is also a function.
    problem = patch(importlib.import_module("torch.multiprocessing.spawn"), "start_processes", wrap)
    return problem or patch(importlib.import_module("torch.multiprocessing"), "start_processes", wrap)


@contextmanager
def _findable() -> Iterator[None]:
    """A spawned process takes over the search path, and must find this module there."""
    sys.path.append(PACKAGE_DIRECTORY)
    try:
        yield
    finally:
        if PACKAGE_DIRECTORY in sys.path:
            sys.path.remove(PACKAGE_DIRECTORY)
