"""What a script that the launcher starts as several ranks cannot do: start ranks of its own, or replace its process.

Each is refused with an exception, by which the verdict knows it. Otherwise the ranks would wait for each other until a
timeout, or end without a record.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing.process
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ddp_ladder_instrument.after_import import when_imported

PACKAGE_DIRECTORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARIES = ("torch.", "multiprocessing.", "concurrent.")
"""Modules whose processes are no ranks, such as loader workers, or ranks that are seen to elsewhere (own_ranks)."""


class ScriptDoesNotFit(RuntimeError):
    """The script does what cannot be measured; the text is for the user."""


@dataclass(frozen=True)
class Launched:
    """The place that the launcher gave this process among its ranks. can_be: one child may take it over."""

    rank: int
    world_size: int
    can_be: bool = True

    def refuse_ranks(self) -> None:
        """Let this process, which the script has started, form no group beside that of the launcher's ranks."""
        if self.world_size > 1:
            when_imported("torch", lambda _took_s: self._refuse())

    def _refuse(self) -> None:
        distributed = sys.modules["torch"].distributed
        original = distributed.init_process_group

        @functools.wraps(original)
        def init_process_group(*args: Any, **options: Any) -> Any:
            given = inspect.signature(original).bind(*args, **options).arguments
            here = launched()
            rank, size = given.get("rank", -1), given.get("world_size", -1)
            rank, size = here.rank if rank < 0 else rank, here.world_size if size < 0 else size
            if size > 1 and not (self.can_be and (rank, size) == (self.rank, self.world_size)):
                raise ScriptDoesNotFit(
                    f"a process that the script has started would be rank {rank} of {size}, beside the "
                    f"{self.world_size} ranks that the launcher has started"
                )
            return original(*args, **options)

        distributed.init_process_group = distributed.distributed_c10d.init_process_group = init_process_group


def launched() -> Launched:
    """Return the place that the launcher gave this process."""
    return Launched(int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1))


@dataclass(frozen=True)
class OwnProcess:
    """Callable that replaces the target of a multiprocessing.Process in the new process."""

    target: Callable[..., Any]
    launched: Launched

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the target."""
        if PACKAGE_DIRECTORY in sys.path:
            sys.path.remove(PACKAGE_DIRECTORY)
        self.launched.refuse_ranks()
        return self.target(*args, **options)


def watch_processes(place: Launched, on_start: Callable[[], None]) -> None:
    """Let no multiprocessing.Process be a rank beside those of the launcher; call ``on_start`` before each starts."""
    original = multiprocessing.process.BaseProcess.start

    @functools.wraps(original)
    def start(self: Any) -> None:
        target = getattr(self, "_target", None)
        if target is not None and not str(getattr(target, "__module__", "")).startswith(LIBRARIES):
            self._target = OwnProcess(target, place)
            on_start()
        with findable():
            original(self)

    if place.world_size > 1:
        multiprocessing.process.BaseProcess.start = start  # type: ignore[method-assign]


@contextmanager
def findable() -> Iterator[None]:
    """Put this package on the search path: a spawned process copies the path and imports this module."""
    sys.path.append(PACKAGE_DIRECTORY)
    try:
        yield
    finally:
        if PACKAGE_DIRECTORY in sys.path:
            sys.path.remove(PACKAGE_DIRECTORY)


def refuse_exec() -> None:
    """Raise where this process would be replaced by another program, but not in a forked child."""
    process = os.getpid()

    def refused(name: str) -> Callable[..., Any]:
        original = getattr(os, name)

        @functools.wraps(original)
        def execute(path: Any, args: Any, *more: Any) -> Any:
            if os.getpid() == process:
                command = " ".join(os.fsdecode(arg) for arg in args)
                raise ScriptDoesNotFit(f"os.{name} would replace the process that is measured by: {command}")
            return original(path, args, *more)

        return execute

    for name in ("execv", "execve"):  # all others call these
        setattr(os, name, refused(name))
