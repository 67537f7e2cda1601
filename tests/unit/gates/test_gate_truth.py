"""An open gate is evidence only if it is true now: for the next stage's job and for the report."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import gate
import pytest
import run_scale
from ddp_ladder.common.files import RunDirectory, write_json
from ddp_ladder.plan.plan import read_plan
from ddp_ladder.report.view import read_results
from make_records import make_gate
from make_runs import edit_rank, reassemble, write_ladder

RUN = "default/weak/1x2/r2"
PLAN = ("--plan", "results/plan.json")
Change = Callable[[Path], object]
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def climbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ladder that was climbed to its top."""
    path = tmp_path_factory.mktemp("climbed") / "results"
    write_ladder(path)
    for stage in ("stage1", "stage2", "stage3"):
        gate.main(["--plan", str(path / "plan.json"), "--stage", stage])
    return path


@pytest.fixture
def results(climbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same to be spoilt, where a user has it."""
    shutil.copytree(climbed, tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    return Path("results")


def hand_written(results: Path) -> None:
    """A gate over a run that failed, whose record is in line with its files."""
    directory = RunDirectory(results / "runs" / RUN)
    edit_rank(directory, 1, exit_code=3)
    reassemble(directory)
    write_json(results / "gates/stage2.json", make_gate("stage2"))


def over_a_run_that_was_deleted_since(results: Path) -> None:
    shutil.rmtree(results / "runs" / RUN)


@pytest.mark.parametrize("spoil", [hand_written, over_a_run_that_was_deleted_since])
def test_a_gate_that_is_not_true_now_starts_no_stage(results: Path, spoil: Change, capsys: Captured) -> None:
    spoil(results)
    run = RunDirectory(results / "runs/default/weak/2x1/r1").run
    before = run.stat()
    capsys.readouterr()
    assert run_scale.main([*PLAN, "--scale", "2x1"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("results/gates/stage2.json: the gate of stage2 is closed")
    assert "  next " in told
    assert run.stat() == before
    # Nor do report and summary take it for what it says.
    assert not read_results(results, read_plan(results / "plan.json")).gates["stage2"].is_open


def test_a_missing_gate_starts_no_stage(results: Path, capsys: Captured) -> None:
    (results / "gates/stage2.json").unlink()
    assert run_scale.main([*PLAN, "--scale", "2x1"]) == 1
    assert "there is no evidence of an open gate" in capsys.readouterr().err
