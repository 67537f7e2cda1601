"""The watcher of imports: called once, right after the body has run, whoever looks for the module and how often."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ddp_ladder_instrument.python_hooks import when_imported

BODY = "COMPLETE = False\nCOMPLETE = True\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with modules that can be imported, and an interpreter that forgets them afterwards."""
    (tmp_path / "watched.py").write_text(BODY)
    (tmp_path / "watched_package").mkdir()
    (tmp_path / "watched_package/__init__.py").write_text("")
    (tmp_path / "watched_package/part.py").write_text(f"import watched\n{BODY}")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield tmp_path
    sys.meta_path[:] = finders
    for name in ("watched", "watched_package", "watched_package.part"):
        sys.modules.pop(name, None)


def calls_of(name: str) -> list[bool]:
    """One entry for each call of the action: whether the module was complete by then."""
    calls: list[bool] = []
    when_imported(name, lambda took_s: calls.append(took_s >= 0 and sys.modules[name].COMPLETE))
    return calls


def probe() -> None:
    assert importlib.util.find_spec("watched") is not None


def probe_and_import() -> None:
    """As datasets, evaluate, transformers and accelerate do with torch."""
    for _ in range(3):
        probe()
    import watched  # type: ignore[import-not-found]  # noqa: F401


def import_again() -> None:
    importlib.import_module("watched")
    importlib.reload(sys.modules["watched"])
    del sys.modules["watched"]
    importlib.import_module("watched")


def fail_first() -> None:
    """A library catches the ImportError of an optional dependency, and the script repairs its cause."""
    path = Path(str(PathFinder.find_spec("watched").origin))  # type: ignore[union-attr]
    path.write_text("import a_module_that_is_not_there")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("watched")
    path.write_text(BODY)
    importlib.import_module("watched")


@pytest.mark.parametrize(
    "how", [lambda: importlib.import_module("watched"), probe_and_import, import_again, fail_first]
)
def test_called_once_right_after_the_body(place: Path, how: Callable[[], object]) -> None:
    calls = calls_of("watched")
    probe()
    assert calls == []
    how()
    assert calls == [True]


def test_a_module_that_imports_another_watched_one_is_called_back_after_it(place: Path) -> None:
    """As accelerate does with torch: when torch is there, accelerate is not yet."""
    order: list[str] = []
    when_imported("watched", lambda _: order.append("watched"))
    when_imported("watched_package.part", lambda _: order.append("watched_package.part"))
    assert importlib.util.find_spec("watched_package.part") is not None
    assert order == []
    importlib.import_module("watched_package.part")
    assert order == ["watched", "watched_package.part"]


class Claims:
    """Finds the module itself, as import hooks that rewrite a package do, and asks nobody else."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, path, target) if name == "watched" else None


@pytest.mark.parametrize("where", ["before", "after"])
def test_other_finders(place: Path, where: str) -> None:
    finder: Any = Claims()
    if where == "after":
        sys.meta_path.insert(0, finder)
    calls = calls_of("watched")
    if where == "before":
        sys.meta_path.insert(0, finder)
    importlib.util.find_spec("watched_package")
    assert importlib.import_module("watched").COMPLETE
    assert calls == [True]


def test_the_module_keeps_its_loader(place: Path) -> None:
    calls_of("watched")
    module = importlib.import_module("watched")
    assert module.__spec__ is not None
    assert type(module.__spec__.loader) is SourceFileLoader
    assert set(vars(module.__spec__.loader)) == {"name", "path"}


def test_threads_that_look_while_others_import(place: Path) -> None:
    calls = calls_of("watched")
    ready, seen = threading.Barrier(6), []

    def look() -> None:
        ready.wait()
        for _ in range(50):
            probe()

    def load() -> None:
        ready.wait()
        importlib.import_module("watched")
        seen.append(list(calls))

    threads = [threading.Thread(target=work) for work in (look, load, look, load, look, load)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [[True]] * 3
