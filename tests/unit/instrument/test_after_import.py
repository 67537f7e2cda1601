"""The watcher of imports: called once, right after the body has run, whoever looks for the module and how often."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

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


@pytest.mark.parametrize("how", [probe_and_import, import_again])
def test_called_once_right_after_the_body(place: Path, how: Callable[[], object]) -> None:
    calls = calls_of("watched")
    probe()
    assert calls == []
    how()
    assert calls == [True]
    spec = sys.modules["watched"].__spec__
    assert spec is not None
    assert type(spec.loader) is SourceFileLoader
    assert set(vars(spec.loader)) == {"name", "path"}  # as before


def test_a_module_that_imports_another_watched_one_is_called_back_after_it(place: Path) -> None:
    """As accelerate does with torch: when torch is there, accelerate is not yet."""
    order: list[str] = []
    when_imported("watched", lambda _: order.append("watched"))
    when_imported("watched_package.part", lambda _: order.append("watched_package.part"))
    assert importlib.util.find_spec("watched_package.part") is not None
    assert order == []
    importlib.import_module("watched_package.part")
    assert order == ["watched", "watched_package.part"]
