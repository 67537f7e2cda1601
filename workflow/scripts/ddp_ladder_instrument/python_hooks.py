"""What is patched in Python itself, before the script runs: imports, os._exit.

A process that the script starts may be no rank: it is refused with an exception, by which the verdict knows it.
Otherwise the ranks would wait for each other until a timeout.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[float], None]
"""Receives the seconds that the import took."""


def when_imported(name: str, action: Action) -> None:
    """Call ``action`` once: right after the body of this module has run, or now if it is already imported."""
    if name in sys.modules:
        action(0.0)
        return
    _WATCHER.actions[name] = action
    if _WATCHER not in sys.meta_path:
        sys.meta_path.insert(0, _WATCHER)


class _Watcher(MetaPathFinder):
    """The first finder: it finds nothing itself, but makes the loader of a watched module call back.

    It stays in sys.meta_path: removing it while another thread iterates would make that thread skip a finder.
    """

    def __init__(self) -> None:
        self.actions: dict[str, Action] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.actions:
            return None
        for finder in [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                with contextlib.suppress(Exception):  # the loader is another library's
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
            action = self.actions.pop(module.__name__, None)  # once, even if two threads import it
            if action is not None:
                action(time.perf_counter() - begin_s)

        loader.exec_module = exec_module


_WATCHER = _Watcher()


def on_hard_exit(record: Callable[[int], object]) -> None:
    """Call ``record`` with the exit code before os._exit ends this process, but not in a forked child."""
    process = os.getpid()
    hard_exit = os._exit

    def _exit(status: int) -> None:
        if os.getpid() == process:
            os._exit = hard_exit  # once, whatever happens in between
            with contextlib.suppress(Exception):
                record(status)
        hard_exit(status)

    os._exit = _exit  # type: ignore[assignment]


class ScriptDoesNotFit(RuntimeError):
    """The script does what cannot be measured; the text is for the user."""


def refuse_rank(rank: object, size: int) -> None:
    """Raise where a process that the script starts would be a rank beside those of the launcher."""
    launched = int(os.environ.get("WORLD_SIZE") or 1)
    raise ScriptDoesNotFit(
        f"a process that the script has started would be rank {rank} of {size}, beside the {launched} "
        f"{'rank' if launched == 1 else 'ranks'} that the launcher has started"
    )
