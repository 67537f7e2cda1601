"""What runs leave in a working directory that they share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import RunDirectory, write_json
from ddp_ladder.records import shared_directory
from ddp_ladder.records.raw_models import Job, RunEnd, SharedDirectory
from ddp_ladder.records.shared_directory import Watch, remarks

NOTHING = {"path": "/x", "found": {}, "appeared": [], "changed": [], "complete": True}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("results/runs", "data", ".git", "mine/__pycache__", "a/b/c/d"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("snapshot.pt", "same.pt", "mine/model.py", "climb.log", "data/train.bin"):
        (tmp_path / name).write_text("before")
    return tmp_path


def watch(project: Path) -> Watch:
    return Watch.start(project, project / "results", project / "data")


def test_what_appears_and_changes_is_named_and_what_is_ours_or_a_cache_is_not(project: Path) -> None:
    before = watch(project)
    (project / "snapshot.pt").write_text("after, longer")
    os.utime(project / "mine/model.py", ns=(1, 1))
    (project / "best.pt").write_text("new")
    (project / "mine/new.txt").write_text("new")
    (project / "lightning_logs/version_0").mkdir(parents=True)
    ours = "results/record.json data/train.bin data/more .git/index .hidden climb.log slurm-7.out a/b/c/d/too_deep"
    for name in (*ours.split(), "mine/__pycache__/model.pyc"):
        (project / name).write_text("ours")
    assert before.end() == SharedDirectory(
        path=str(project),
        found={},
        appeared=("best.pt", "lightning_logs/", "mine/new.txt"),
        changed=("snapshot.pt", "mine/model.py"),
        complete=True,
    )
    assert watch(project).end().written == []


def test_a_directory_that_is_missing_or_too_large(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Watch.start(project / "scratch", project / "results", None)
    (project / "scratch").mkdir()
    (project / "scratch/snapshot.pt").touch()
    assert missing.end().appeared == ("snapshot.pt",)
    monkeypatch.setattr(shared_directory, "MOST_ENTRIES", 3)
    large = watch(project)
    for name in ("mine/new.pt", "new.pt"):
        (project / name).touch()
    assert (large.end().appeared, large.end().complete) == (("new.pt",), False)


def end_of(ended_at_s: float = 1.0, **left: Any) -> RunEnd:
    """The end of a run that left this in a shared directory; of one with its own if nothing is given."""
    return RunEnd(
        schema_version=1,
        spec_hash="",
        job=Job(id="1", attempt=1, run_id="x"),
        host="a",
        started_at_s=0.0,
        ended_at_s=ended_at_s,
        outcome="finished",
        shared_directory=SharedDirectory(**{**NOTHING, **left}) if left else None,
    )


def leave(project: Path, run: str, ended_at_s: float, **left: Any) -> None:
    end = end_of(ended_at_s, **{"path": str(project), **left})
    write_json(RunDirectory(project / "results/runs" / run).ended, end.model_dump())


def test_what_earlier_runs_left_is_found_with_the_last_one_that_wrote_it(project: Path) -> None:
    leave(project, "default/weak/1x1/r2", 2.0, changed=["snapshot.pt"])
    leave(project, "default/weak/1x1/r1", 1.0, appeared=["snapshot.pt", "gone.pt"])
    leave(project, "default/weak/1x2/r1/attempts/1", 3.0, appeared=["mine/model.py"])
    leave(project, "default/weak/2x1/r1", 4.0, appeared=["same.pt"], path="/elsewhere")
    broken = project / "results/runs/b/weak/1x1/r1/ended.json"
    broken.parent.mkdir(parents=True)
    broken.write_text('{"ended_at_s": 1}')
    assert watch(project).end().found == {
        "snapshot.pt": "default/weak/1x1/r2",
        "mine/model.py": "default/weak/1x2/r1",
    }


def test_repeats_that_leave_the_same_files_make_the_same_remark() -> None:
    (first,) = remarks(end_of(appeared=["snapshot.pt"]))
    (second,) = remarks(end_of(changed=["snapshot.pt"]))
    assert first == second
    where = "in the shared working directory /x during the run"
    assert first.what == f"snapshot.pt appeared or changed {where}: a later run may start from it"
    assert 'workload.directory: "{run_dir}"' in first.next
    names = [f"{k}.pt" for k in range(5)]
    assert "0.pt, 1.pt, 2.pt and 2 more appeared" in next(remarks(end_of(appeared=names))).what
    for nothing in (None, end_of(), end_of(appeared=[])):
        assert list(remarks(nothing)) == []
