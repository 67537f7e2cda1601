"""Call back when a module has been imported, whoever imports it and whatever failed attempts came before.

itertools.cycle: it keeps the batches of a pass over a DataLoader and gives them again, which no loader sees.

Write the record before os._exit, which scripts use if a clean end hangs.

What a script that the launcher starts as several ranks cannot do: start ranks of its own, or replace its process.

Each is refused with an exception, by which the verdict knows it. Otherwise the ranks would wait for each other until a
timeout, or end without a record.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import multiprocessing.process
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import LazyLoader, spec_from_loader
from types import ModuleType
from typing import Any

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
        spec = self._found_by_others(fullname, path, target)
        if spec is not None:
            _call_back(spec.loader, self.fire)
        return spec

    def _found_by_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            if hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
            elif sys.version_info < (3, 12) and hasattr(finder, "find_module"):
                loader = finder.find_module(name, path)
                spec = spec_from_loader(name, loader) if loader is not None else None
            else:
                continue
            if spec is not None:
                return spec
        return None

    def fire(self, name: str, took_s: float) -> None:
        """Call the actions for this module, once, even if it is imported twice or in two threads."""
        for action in self.actions.pop(name, ()):
            action(took_s)


_WATCHER = _Watcher()


def _call_back(loader: Any, fire: Callable[[str, float], None]) -> None:
    """Make this one loader call back; the module keeps its own spec and loader."""
    while isinstance(loader, LazyLoader):
        loader = loader.loader  # type: ignore[attr-defined]
    if isinstance(loader, type) or not hasattr(loader, "__dict__"):
        return  # a class is shared by the whole process (built-in modules); None is a directory without code
    method = "exec_module" if hasattr(loader, "exec_module") else "load_module"
    if not isinstance(vars(loader).get(method), _Load):
        setattr(loader, method, _Load(loader, method, fire))


class _Load:
    """Replaces a loader's method until a module has been loaded with it."""

    def __init__(self, loader: Any, method: str, fire: Callable[[str, float], None]) -> None:
        self._loader, self._method, self._original = loader, method, getattr(loader, method)
        self._fire = fire

    def __call__(self, module: ModuleType | str) -> Any:
        """Load, and call back if this is the module in sys.modules, not a copy of it."""
        name = module if isinstance(module, str) else module.__name__
        is_imported = isinstance(module, str) or sys.modules.get(name) is module
        begin_s = time.perf_counter()
        result = self._original(module)
        if is_imported:
            if vars(self._loader).get(self._method) is self:
                delattr(self._loader, self._method)
            self._fire(name, time.perf_counter() - begin_s)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the loader's original method."""
        return getattr, (self._loader, self._method)


On = Callable[[Any, Any, float], None]
"""Receives the cycle, what it has just given, and when it was asked for that."""


class Cycle(itertools.cycle):  # type: ignore[type-arg]
    """Replaces itertools.cycle, also in pickles.

    pass_of: returns the pass over a DataLoader that an iterator makes, if it does. on_next: called for such cycles.
    """

    pass_of: Callable[[Any], Any] = staticmethod(lambda iterator: None)
    on_next: On = staticmethod(lambda cycle, item, entered_s: None)

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
