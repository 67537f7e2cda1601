"""Ranks that a script starts itself with torch.multiprocessing: each is measured like one of a launcher."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ddp_ladder_instrument import record
from ddp_ladder_instrument.hooks import patch
from ddp_ladder_instrument.measurement import Measurement
from ddp_ladder_instrument.program import Program
from ddp_ladder_instrument.python_hooks import PACKAGE_DIRECTORY, Launched, findable, launched, watch_processes
from ddp_ladder_instrument.settings import read_run_settings

_hooked: list[Measurement] = []
"""The measurement whose hooks this process has; empty before they are installed."""


@dataclass(frozen=True)
class OwnRank:
    """Callable that replaces the script's function in the new process."""

    function: Callable[..., Any]
    program: Program
    launched: Launched

    def __call__(self, *arguments: Any) -> None:
        """Run the function and write its record; raise what it raises."""
        if PACKAGE_DIRECTORY in sys.path:
            sys.path.remove(PACKAGE_DIRECTORY)
        measurement = _measurement(self.program)
        self.launched.refuse_ranks()
        began_at = measurement.clock.table.count
        ended_with: BaseException | None = None
        try:
            self.function(*arguments)
        except BaseException as error:
            ended_with = error
        ended_with = measurement.end(ended_with)
        # A helper that is no rank forms no group and steps no optimizer; the file belongs to a rank. Steps that were
        # made before a process was forked are not its own.
        observer = measurement.observer
        if (
            observer is not None
            and observer.process_group_s is not None
            and measurement.clock.table.count
            and not began_at
        ):
            record.write_or_note(measurement)
        if ended_with is not None:
            raise ended_with


def _measurement(program: Program) -> Measurement:
    """Return this process's measurement: a forked process continues with its parent's hooks, a spawned one has none."""
    if _hooked:
        (measurement,) = _hooked
        measurement.begin_in_fork()
        return measurement
    measurement = Measurement(read_run_settings(), program, time.time())
    measurement.watch()
    measure_own_ranks(measurement)
    return measurement


def measure_own_ranks(measurement: Measurement) -> None:
    """Measure the ranks that this process starts; torch must be imported."""
    measurement.not_measured.hook("own processes", lambda: _patch_spawn(measurement))


def _patch_spawn(measurement: Measurement) -> str | None:
    """Measure and count the processes that torch.multiprocessing.spawn and start_processes start."""
    _hooked[:] = [measurement]
    place = launched()

    def count(processes: int = 1) -> None:
        measurement.own_processes += processes

    watch_processes(place, count)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def start_processes(fn: Any, args: Any = (), nprocs: int = 1, *more: Any, **options: Any) -> Any:
            count(nprocs)
            measurement.heartbeat.hand_over()
            own = OwnRank(fn, measurement.program, replace(place, can_be=nprocs == 1))
            with findable():
                return original(own, args, nprocs, *more, **options)

        return start_processes

    # By name: torch.multiprocessing.spawn is also a function.
    problem = patch(importlib.import_module("torch.multiprocessing.spawn"), "start_processes", wrap)
    return problem or patch(importlib.import_module("torch.multiprocessing"), "start_processes", wrap)
