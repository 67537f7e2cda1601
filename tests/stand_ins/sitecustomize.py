"""Puts the stand-in for CUDA into every process that has this directory in PYTHONPATH, when it imports torch."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType


class _Loader(importlib.abc.Loader):
    """Loads torch as its own loader does, and changes it."""

    def __init__(self, own: importlib.abc.Loader) -> None:
        self._own = own

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._own.exec_module(module)
        import stand_in_cuda

        stand_in_cuda.install()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds torch. It asks no other finder of the process, so that the instrument's sees torch as it is here."""

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name) if name == "torch" else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


if "STAND_IN_GPUS" in os.environ:
    sys.meta_path.insert(0, _Finder())
