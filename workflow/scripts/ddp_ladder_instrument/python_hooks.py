"""What is patched in Python itself, before the script runs: imports, os._exit, os.exec, itertools.cycle, own processes.

A process that the script starts may be no rank, and the script may not replace its process: both are refused with an
exception, by which the verdict knows it. Otherwise the ranks would wait for each other until a timeout, or end without
a record.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import multiprocessing.process
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGE_DIRECTORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OF_LIBRARIES = ("torch.", "multiprocessing.", "concurrent.")
"""Modules whose processes are no ranks, such as loader workers; but OF_SPAWN starts ranks."""
OF_SPAWN = "torch.multiprocessing.spawn"

Action = Callable[[float], None]
"""Receives the seconds that the import took."""


def when_imported(name: str, action: Action) -> None:
    """Call ``action`` once: right after the body of this module has run, or now if it is already imported."""
    if name in sys.modules:
        action(0.0)
        return
    _WATCHER.actions.setdefault(name, []).append(action)
    _WATCHER.come_first()


class _Watcher(MetaPathFinder):
    """The first finder: it finds nothing itself, but makes the loader of a watched module call back.

    It stays in sys.meta_path: removing it while another thread iterates would make that thread skip a finder.
    """

    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}

    def come_first(self) -> None:
        """Move to the front: a finder before this one could load a watched module unnoticed."""
        if not sys.meta_path or sys.meta_path[0] is not self:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        self.come_first()
        if fullname not in self.actions:
            return None
        for finder in [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._watch(spec.loader)
                return spec
        return None

    def _watch(self, loader: Any) -> None:
        """Make this one loader call the actions once it has executed its module."""
        original = getattr(loader, "exec_module", None)
        if original is None or not hasattr(loader, "__dict__") or "exec_module" in vars(loader):
            return  # a directory without code, or watched already

        def exec_module(module: ModuleType) -> None:
            begin_s = time.perf_counter()
            original(module)
            vars(loader).pop("exec_module", None)
            for action in self.actions.pop(module.__name__, ()):  # once, even if two threads import it
                action(time.perf_counter() - begin_s)

        loader.exec_module = exec_module


_WATCHER = _Watcher()


class Cycle(itertools.cycle):  # type: ignore[type-arg]
    """Replaces itertools.cycle, also in pickles. It gives the batches of a pass again, unseen by their loader.

    pass_of: returns the pass over a DataLoader that an iterator makes, if it does. on_next: called for such cycles with
    the cycle, what it has just given, and when it was asked for that.
    """

    pass_of: Callable[[Any], Any] = staticmethod(lambda iterator: None)
    on_next: Callable[[Any, Any, float], None] = staticmethod(lambda cycle, item, entered_s: None)

    def __new__(cls, iterable: Iterable[Any]) -> Any:
        """Make the iterator here: a cycle does not tell what it draws from."""
        iterator = iter(iterable)
        first = Cycle.pass_of(iterator) if cls is Cycle else None
        made: Any = super().__new__(cls if first is None else WatchedCycle, iterator)
        if first is not None:
            made.first, made.sizes, made.repeated = first, [], 0
        return made


class WatchedCycle(Cycle):
    """A cycle of batches. first: the pass that drew them. sizes: theirs. repeated: how many were given again."""

    first: Any
    sizes: list[Any]
    repeated: int

    def __next__(self) -> Any:
        """Return the next batch."""
        entered_s = time.perf_counter()
        batch = super().__next__()
        Cycle.on_next(self, batch, entered_s)
        return batch


Cycle.__module__, Cycle.__name__, Cycle.__qualname__ = "itertools", "cycle", "cycle"


def watch_cycles() -> None:
    """Replace itertools.cycle, before the script imports it by name."""
    itertools.cycle = Cycle  # type: ignore[misc]


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


class ScriptDoesNotFit(RuntimeError):
    """The script does what cannot be measured; the text is for the user."""


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


@dataclass(frozen=True)
class OwnProcess:
    """Callable that replaces the target of a multiprocessing.Process: the new process forms no group of ranks.

    is_spawned: by torch.multiprocessing.spawn, which starts ranks; another one may have a group of its own, alone.
    """

    target: Callable[..., Any]
    launched: int
    is_spawned: bool

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the target."""
        if PACKAGE_DIRECTORY in sys.path:
            sys.path.remove(PACKAGE_DIRECTORY)
        when_imported("torch", lambda _took_s: self._refuse())
        return self.target(*args, **options)

    def _refuse(self) -> None:
        distributed = sys.modules["torch"].distributed
        original = distributed.init_process_group

        @functools.wraps(original)
        def init_process_group(*args: Any, **options: Any) -> Any:
            given = inspect.signature(original).bind(*args, **options).arguments
            rank, size = given.get("rank", -1), given.get("world_size", -1)
            rank = int(os.environ.get("RANK") or 0) if rank < 0 else rank
            size = int(os.environ.get("WORLD_SIZE") or 1) if size < 0 else size
            if size > 1 or self.is_spawned:
                raise ScriptDoesNotFit(
                    f"a process that the script has started would be rank {rank} of {size}, beside the "
                    f"{self.launched} {'rank' if self.launched == 1 else 'ranks'} that the launcher has started"
                )
            return original(*args, **options)

        distributed.init_process_group = distributed.distributed_c10d.init_process_group = init_process_group


def watch_processes(on_start: Callable[[], None]) -> None:
    """Let no multiprocessing.Process be a rank beside those of the launcher; call ``on_start`` before each starts."""
    original = multiprocessing.process.BaseProcess.start
    launched = int(os.environ.get("WORLD_SIZE") or 1)

    @functools.wraps(original)
    def start(self: Any) -> None:
        target = getattr(self, "_target", None)
        module = str(getattr(target, "__module__", ""))
        if target is None or (module.startswith(OF_LIBRARIES) and module != OF_SPAWN):
            original(self)
            return
        on_start()
        self._target = OwnProcess(target, launched, module == OF_SPAWN)
        sys.path.append(PACKAGE_DIRECTORY)  # a spawned process copies the path and imports this module
        try:
            original(self)
        finally:
            if PACKAGE_DIRECTORY in sys.path:
                sys.path.remove(PACKAGE_DIRECTORY)

    multiprocessing.process.BaseProcess.start = start  # type: ignore[method-assign]
