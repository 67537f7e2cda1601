from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest
from ddp_ladder.common.files import NotWritten, canonical_sha256, read_json, sha256, write_atomically


@pytest.mark.parametrize("content", ["größe\n", b"\x00\xff", ""])
def test_content_arrives_and_directories_are_made(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_atomically(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("call", ["fsync", "chmod", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException
) -> None:
    def failing(*_: object) -> None:
        raise error

    path = tmp_path / "file"
    write_atomically(path, "old")
    monkeypatch.setattr(os, call, failing)
    with pytest.raises(type(error), match="no space" if isinstance(error, OSError) else None):
        write_atomically(path, "new")
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_text() == "old"


def test_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = ["a" * 300_000, "b" * 200_000]
    write_atomically(path, contents[0])
    done = threading.Event()

    def write() -> None:
        for k in range(100):
            write_atomically(path, contents[k % 2])
        done.set()

    threading.Thread(target=write).start()
    seen = {path.read_text()}
    while not done.is_set():
        seen.add(path.read_text())
    assert seen <= set(contents)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_file_is_as_readable_as_the_umask_says(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "file", "")
    finally:
        assert os.umask(before) == mask
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


@pytest.mark.parametrize(
    "text", ["", "{", '{"a": NaN}', "[-Infinity]", "[" * 100_000, "\udcff", '{"a": 1}\0'], ids=ascii
)
def test_what_is_not_json_names_its_file_briefly(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=r"x\.json is not JSON: ") as caught:
        read_json(path)
    assert len(str(caught.value)) < 300


def test_digests() -> None:
    assert sha256(b"abc").startswith("ba7816bf8f01cfea")
    assert canonical_sha256({"a": 1, "b": [1, 2]}) == canonical_sha256({"b": [1, 2], "a": 1})
    assert canonical_sha256({"b": [1, 2]}) != canonical_sha256({"b": [2, 1]})
    with pytest.raises(ValueError, match="Out of range"):
        canonical_sha256(float("nan"))


def test_where_no_files_are_kept_no_room_is_looked_for() -> None:
    with pytest.raises(NotWritten) as caught:
        write_atomically(Path("/proc/none/file"), "")
    assert str(caught.value.problem.next).startswith("/proc keeps no files: name another directory in `results`")
