"""Call back when a module has been imported, whoever imports it and whatever failed attempts came before."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
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
