"""Call back when a module has been imported, by whomever."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Action = Callable[[float], None]
"""Receives the seconds that the import took."""


def when_imported(name: str, action: Action) -> None:
    """Call ``action`` once: right after the top-level module was imported, now if it already is."""
    if name in sys.modules:
        action(0.0)
    else:
        sys.meta_path.insert(0, _Watcher(name, action))


class _Watcher(MetaPathFinder):
    def __init__(self, name: str, action: Action) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)
            return None
        self._wrap(spec.loader)
        return spec

    def _wrap(self, loader: object) -> None:
        """Wrap this one loader's exec_module: the module keeps its own spec and loader."""
        original = loader.exec_module  # type: ignore[attr-defined]

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # type: ignore[attr-defined]
            begin_s = time.perf_counter()
            try:
                original(module)
            except BaseException:
                sys.meta_path.insert(0, self)
                raise
            self._action(time.perf_counter() - begin_s)

        loader.exec_module = exec_module  # type: ignore[attr-defined]
