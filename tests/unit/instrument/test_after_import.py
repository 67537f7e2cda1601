"""The watcher of imports: called once, right after the body has run, whoever looks for the module and how often."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.resources
import importlib.util
import inspect
import pickle
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ddp_ladder_instrument.python_hooks import when_imported

BODY = "COMPLETE = False\nCOMPLETE = True\n"
NAMES = ("watched", "watched_package", "watched_package.part", "unwatched", "other")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with modules that can be imported, and an interpreter that forgets them afterwards."""
    (tmp_path / "watched.py").write_text(BODY)
    (tmp_path / "unwatched.py").write_text("")
    (tmp_path / "watched_package").mkdir()
    (tmp_path / "watched_package/__init__.py").write_text("")
    (tmp_path / "watched_package/part.py").write_text(BODY)
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield tmp_path
    sys.meta_path[:] = finders
    for name in NAMES:
        sys.modules.pop(name, None)


def calls_of(name: str) -> list[bool]:
    """One entry for each call of the action: whether the module was complete by then."""
    calls: list[bool] = []
    when_imported(name, lambda took_s: calls.append(took_s >= 0 and sys.modules[name].COMPLETE))
    return calls


# What libraries do before or instead of an import statement.


def probe() -> None:
    assert importlib.util.find_spec("watched") is not None


def probe_and_import() -> None:
    """As datasets, evaluate, transformers and accelerate do with torch."""
    for _ in range(3):
        probe()
    import watched  # type: ignore[import-not-found]  # noqa: F401


def probe_past_other_finders() -> None:
    assert PathFinder.find_spec("watched") is not None
    importlib.import_module("watched")


def use_a_probed_spec() -> None:
    spec = importlib.util.find_spec("watched")
    probe()
    assert spec is not None
    assert spec.loader is not None
    sys.modules["watched"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["watched"])


def make_a_copy_first() -> None:
    spec = importlib.util.find_spec("watched")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))  # which no import statement gives
    importlib.import_module("watched")


def load_lazily() -> None:
    spec = importlib.util.find_spec("watched")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    sys.modules["watched"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.COMPLETE


def import_again() -> None:
    importlib.import_module("watched")
    importlib.reload(sys.modules["watched"])
    del sys.modules["watched"]
    importlib.import_module("watched")


def fail_first() -> None:
    """A library catches the ImportError of an optional dependency, and the script repairs its cause."""
    probe()
    path = Path(str(PathFinder.find_spec("watched").origin))  # type: ignore[union-attr]
    good = path.read_text()
    path.write_text("import a_module_that_is_not_there")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("watched")
    path.write_text(good)
    importlib.import_module("watched")


@pytest.mark.parametrize(
    "how",
    [
        lambda: importlib.import_module("watched"),
        lambda: __import__("watched"),
        probe_and_import,
        probe_past_other_finders,
        use_a_probed_spec,
        make_a_copy_first,
        load_lazily,
        import_again,
        fail_first,
    ],
)
def test_called_once_right_after_the_body(place: Path, how: Callable[[], object]) -> None:
    calls = calls_of("watched")
    how()
    assert calls == [True]


def test_a_probe_calls_nothing_and_lazy_loading_stays_lazy(place: Path) -> None:
    calls = calls_of("watched")
    probe()
    spec = importlib.util.find_spec("watched")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    sys.modules["watched"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["watched"])
    assert calls == []


def test_called_at_once_where_the_module_is_there(place: Path) -> None:
    importlib.import_module("watched")
    assert calls_of("watched") == [True]


def test_looking_for_a_submodule_imports_its_parent_only(place: Path) -> None:
    calls = calls_of("watched_package.part")
    assert importlib.util.find_spec("watched_package.part") is not None
    assert "watched_package" in sys.modules
    assert calls == []
    importlib.import_module("watched_package.part")
    assert calls == [True]


def test_a_module_that_imports_another_watched_one_is_called_back_after_it(place: Path) -> None:
    """As accelerate does with torch: when torch is there, accelerate is not yet."""
    (place / "watched_package/part.py").write_text(f"import watched\n{BODY}")
    order: list[str] = []
    when_imported("watched", lambda _: order.append("watched"))
    when_imported("watched_package.part", lambda _: order.append("watched_package.part"))
    importlib.import_module("watched_package.part")
    assert order == ["watched", "watched_package.part"]


# Other finders and loaders.


class Claims:
    """Finds the module itself, as import hooks that rewrite a package do, and asks nobody else."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, path, target) if name == "watched" else None


class Asks:
    """Asks the other finders and looks at what they found, as wrapt's import hooks do."""

    asking = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if self.asking:
            return None
        self.asking = True
        try:
            return importlib.util.find_spec(name)
        finally:
            self.asking = False


class Lazy:
    """Makes every import of the module a lazy one."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = Claims.find_spec(name, path, target)
        if spec is not None:
            assert spec.loader is not None
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


class OldLoader:
    """A loader from before Python 3.4."""

    def load_module(self, name: str) -> ModuleType:
        sys.modules[name] = module = ModuleType(name)
        exec(BODY, vars(module))
        return module


class WithOldLoader:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(name, OldLoader()) if name == "watched" else None  # type: ignore[arg-type]


class OldFinder:
    """A finder from before Python 3.4, which Python 3.12 no longer asks."""

    @staticmethod
    def find_module(name: str, path: Sequence[str] | None = None) -> OldLoader | None:
        return OldLoader() if name == "watched" else None


class Shared:
    """Finds and loads several modules itself, as six does with its own."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in ("watched", "other") else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(BODY, vars(module))


@pytest.mark.filterwarnings("ignore::ImportWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("finder", [Claims(), Asks(), Lazy(), WithOldLoader(), OldFinder(), Shared()])
@pytest.mark.parametrize("where", ["before", "after"])
def test_other_finders(place: Path, finder: Any, where: str) -> None:
    if isinstance(finder, OldFinder) and sys.version_info >= (3, 12):
        Path(place / "watched.py").unlink()
        calls_of("watched")
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("watched")
        return
    if where == "after":
        sys.meta_path.insert(0, finder)
    calls = calls_of("watched")
    if where == "before":
        sys.meta_path.insert(0, finder)
    probe()
    importlib.import_module("unwatched")
    assert calls == []
    assert importlib.import_module("watched").COMPLETE
    assert calls == [True]


def test_a_loader_that_serves_several_modules(place: Path) -> None:
    sys.meta_path.insert(0, Shared())
    calls, others = calls_of("watched"), calls_of("other")
    for name in ("watched", "other"):
        importlib.util.find_spec(name)
    importlib.import_module("other")
    assert (calls, others) == ([], [True])
    importlib.import_module("watched")
    assert (calls, others) == ([True], [True])


def test_a_module_in_a_zip_file(place: Path) -> None:
    (place / "watched.py").unlink()
    with zipfile.ZipFile(place / "all.zip", "w") as archive:
        archive.writestr("watched.py", BODY)
    sys.path.insert(0, str(place / "all.zip"))
    calls = calls_of("watched")
    probe_and_import()
    assert calls == [True]


def test_modules_without_code_of_their_own(place: Path) -> None:
    """Built-in ones, whose loader is a class for all of them, and directories without __init__.py."""
    (place / "watched.py").unlink()
    (place / "watched").mkdir()
    calls: list[float] = []
    when_imported("watched", calls.append)
    importlib.import_module("watched")
    program = (
        "import sys; from ddp_ladder_instrument.python_hooks import when_imported;"
        "when_imported('_tracemalloc', print); del sys.modules['time']; import _tracemalloc, time; print('imported')"
    )
    scripts = Path(__file__).parents[3] / "workflow/scripts"
    done = subprocess.run([sys.executable, "-c", program], cwd=scripts, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("imported\n", "")


# What a loader is to others.


def test_the_module_keeps_its_loader(place: Path) -> None:
    calls_of("watched")
    probed = importlib.util.find_spec("watched")
    assert probed is not None
    assert type(probed.loader) is SourceFileLoader
    assert (probed.loader.name, probed.loader.path) == ("watched", str(place / "watched.py"))
    assert type(pickle.loads(pickle.dumps(probed.loader))) is SourceFileLoader
    module = importlib.import_module("watched")
    assert module.__spec__ is not None
    assert type(module.__spec__.loader) is SourceFileLoader
    assert set(vars(module.__spec__.loader)) == {"name", "path"}
    assert module.__loader__ is module.__spec__.loader
    assert inspect.getsource(module) == BODY
    assert importlib.resources.files("watched_package").joinpath("part.py").read_text() == BODY


def test_a_pickled_loader_loads_elsewhere(place: Path) -> None:
    calls_of("watched")
    probed = importlib.util.find_spec("watched")
    assert probed is not None
    program = (
        "import importlib.util, pickle, sys; loader = pickle.load(sys.stdin.buffer);"
        "module = importlib.util.module_from_spec(importlib.util.spec_from_loader('watched', loader));"
        "loader.exec_module(module); print(module.COMPLETE)"
    )
    pickled = pickle.dumps(probed.loader)
    done = subprocess.run([sys.executable, "-c", program], input=pickled, capture_output=True, check=True)
    assert done.stdout == b"True\n"


# Threads.


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


def test_nobody_gets_the_module_before_the_action_has_ended(place: Path) -> None:
    ended: list[bool] = []
    seen: list[list[bool]] = []
    asked = threading.Event()

    def load() -> None:
        asked.set()
        importlib.import_module("watched")
        seen.append(list(ended))

    other = threading.Thread(target=load)

    def action(took_s: float) -> None:
        other.start()
        assert asked.wait(60)
        assert importlib.util.find_spec("watched") is not None
        ended.append(True)

    when_imported("watched", action)
    load()
    other.join(60)
    assert seen == [[True], [True]]


def test_an_import_in_a_thread_that_the_module_starts_itself(place: Path) -> None:
    """Its body waits for a thread that probes: a lock held meanwhile would be a deadlock."""
    body = (
        "import importlib.util, threading\n"
        "thread = threading.Thread(target=lambda: (importlib.util.find_spec('watched'), __import__('unwatched')))\n"
        "thread.start(); thread.join(60); ENDED = not thread.is_alive()\n"
    )
    (place / "watched.py").write_text(body + BODY)
    calls = calls_of("watched")
    assert importlib.import_module("watched").ENDED
    assert calls == [True]
