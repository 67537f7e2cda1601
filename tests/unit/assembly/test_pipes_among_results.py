"""A pipe in place of a file of the results: its reader names it, or does without it, and never waits for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ddp_ladder.assembly.run_records import FullyCheckedRecords, RunRecords
from ddp_ladder.common import files
from ddp_ladder.common.files import RunDirectory, file_text, opened, read_bytes, touched_s
from ddp_ladder.diagnosis.signatures import read_lines
from ddp_ladder.gates.gate import judge
from ddp_ladder.live.status import Reader
from make_records import make_spec
from make_runs import reassemble, write_ladder, write_run

pytestmark = pytest.mark.timeout(60)


def in_place_of(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


FILES = ["run.json", "record.json", "ended.json", "train.log", "ranks/rank0.json", "ranks/rank1.log"]
FILES += ["nodes/node0.json", "nodes/node0.zip", "nodes/node0.csv", "progress.json", "checked.json"]


@pytest.mark.parametrize("name", FILES)
def test_gate_assembly_and_watch_end(name: str, tmp_path: Path) -> None:
    plan = write_ladder(tmp_path, scales=["1x1", "1x2"], repeats=1)
    spec = plan.runs[-1]
    pipe = in_place_of(RunDirectory(tmp_path / "runs" / spec.name).path / name)
    for records in (RunRecords(tmp_path), FullyCheckedRecords(tmp_path)):
        verdict = judge(plan, "stage2", tmp_path, records)
        if name == "record.json":
            assert f"it is no regular file: '{pipe}'" in str(verdict)
    RunRecords(tmp_path).made(spec)
    Reader(tmp_path).read()


def test_each_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = in_place_of(tmp_path / "pipe")
    for read in (opened, read_bytes, touched_s):
        with pytest.raises(OSError, match="it is no regular file"):
            read(pipe)
    assert (file_text(pipe), read_lines(pipe)) == (None, ())
    (tmp_path / "long").write_bytes(b"1234")
    monkeypatch.setattr(files, "MOST_BYTES", 3)
    with pytest.raises(OSError, match=r"it has more than 3 bytes: '.*long'"):
        read_bytes(tmp_path / "long")


def test_a_record_of_a_run_with_a_pipe_names_it(tmp_path: Path) -> None:
    directory = write_run(tmp_path, make_spec("1x2"))
    in_place_of(directory.ranks / "rank0.json")
    assert "rank0.json" in reassemble(directory).model_dump_json()
