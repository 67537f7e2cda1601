"""The raw files of a record that was checked are read again only if they have changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.plan.plan import RunSpec
from make_records import make_spec
from make_runs import write_run
from opened_files import opened


@contextmanager
def opened_below(directory: RunDirectory) -> Iterator[list[str]]:
    """Yield the names of the files that are opened for reading below a run's directory, once the block is over."""
    names: list[str] = []
    with opened() as events:
        yield names
    paths = (path for event, path in events if event == "open" and path.startswith(str(directory.path)))
    names += [Path(path).name for path in paths if ".json." not in path]


@pytest.fixture
def spec() -> RunSpec:
    return make_spec("2x1")


@pytest.fixture
def directory(tmp_path: Path, spec: RunSpec) -> RunDirectory:
    written = write_run(tmp_path, spec)
    for file in written.path.rglob("*"):
        os.utime(file, (1_800_000_000, 1_700_000_000))
    RunRecords(tmp_path).believed(spec)
    return written


def test_files_that_have_not_changed_are_not_opened(tmp_path: Path, directory: RunDirectory, spec: RunSpec) -> None:
    with opened_below(directory) as names:
        assert RunRecords(tmp_path).believed(spec).status == "ok"
    assert sorted(names) == ["checked.json", "record.json"]


def test_a_file_that_has_changed_is_read_alone(tmp_path: Path, directory: RunDirectory, spec: RunSpec) -> None:
    file = directory.nodes / "node1.json"
    file.write_bytes(file.read_bytes().replace(b"node1", b"node9"))
    with opened_below(directory) as names, pytest.raises(ValueError, match=r"node1\.json has changed"):
        RunRecords(tmp_path).believed(spec)
    assert sorted(names) == ["checked.json", "node1.json", "record.json"]


def test_a_file_that_has_just_changed_is_read_each_time(tmp_path: Path, directory: RunDirectory, spec: RunSpec) -> None:
    (directory.nodes / "node1.json").touch()
    for _ in range(2):
        with opened_below(directory) as names:
            RunRecords(tmp_path).believed(spec)
        assert "node1.json" in names
