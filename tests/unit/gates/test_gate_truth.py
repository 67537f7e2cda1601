"""An open gate is evidence only if it is true now: for the next stage's job, for the report and for the summary."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import gate
import pytest
import run_scale
from ddp_ladder.common.files import RunDirectory, write_json
from ddp_ladder.plan.file import read_plan
from ddp_ladder.report.results import read_results
from make_records import make_gate
from make_runs import edit, reassemble, write_ladder

STAGES = ("stage1", "stage2", "stage3")
RUN = "default/weak/1x2/r2"
PLAN = ("--plan", "results/plan.json")
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def climbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ladder that was climbed to its top."""
    path = tmp_path_factory.mktemp("climbed") / "results"
    write_ladder(path)
    judge_all(path)
    return path


@pytest.fixture
def results(climbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same to be spoilt, where a user has it."""
    shutil.copytree(climbed, tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    return Path("results")


def judge_all(results: Path) -> None:
    for stage in STAGES:
        gate.main(["--plan", str(results / "plan.json"), "--stage", stage])


def fail(results: Path, run: str = RUN) -> None:
    """Let a run have failed, its record in line with its files."""
    directory = RunDirectory(results / "runs" / run)
    edit(directory.ranks / "rank1.json", lambda end: end.update(exit_code=3))
    reassemble(directory)


def _hand_written(results: Path) -> None:
    fail(results)
    write_json(results / "gates/stage2.json", make_gate("stage2"))


def _truncated(results: Path) -> None:
    file = results / "gates/stage2.json"
    file.write_bytes(file.read_bytes()[:200])


def _of_another_results_directory(results: Path) -> None:
    other = Path("other")
    write_ladder(other, rates={"1x1": 1000.0, "1x2": 1900.0, "2x1": 1800.0})
    gate.main(["--plan", "other/plan.json", "--stage", "stage2"])
    shutil.copy(other / "gates/stage2.json", results / "gates/stage2.json")


BAD_GATES: dict[str, tuple[Change, str]] = {
    "hand-written": (_hand_written, "judged again, the gate of stage2 is closed"),
    "truncated": (_truncated, "not a complete gate file"),
    "of another results directory": (_of_another_results_directory, "not what the records give now"),
    "over a run that was deleted since": (
        lambda results: shutil.rmtree(results / "runs" / RUN),
        "judged again, the gate of stage2 is closed",
    ),
}


@pytest.mark.parametrize("name", BAD_GATES)
def test_a_gate_that_is_not_true_now_starts_no_stage_and_is_named(
    results: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, words = BAD_GATES[name]
    spoil(results)
    before = RunDirectory(results / "runs/default/weak/2x1/r1").run.stat()
    capsys.readouterr()
    assert run_scale.main([*PLAN, "--scale", "2x1"]) == 1
    told = capsys.readouterr().err
    assert "results/gates/stage2" in told
    assert words in told
    assert "  next " in told
    assert RunDirectory(results / "runs/default/weak/2x1/r1").run.stat() == before

    # Nor do report and summary take it for what it says; and they, too, name it.
    found = read_results(results, read_plan(results / "plan.json"))
    assert any("results/gates/stage2" in warning and words in warning for warning in found.warnings)
    assert found.gates["stage2"].is_open == gate_is_open_now(results)


def gate_is_open_now(results: Path) -> bool:
    """Judged on a copy, so that no gate file of before is in the way."""
    shutil.copytree(results, "copy", ignore=shutil.ignore_patterns("gates", "report"))
    return gate.main(["--plan", "copy/plan.json", "--stage", "stage2"]) == 0


def test_a_missing_gate_starts_no_stage(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (results / "gates/stage2.json").unlink()
    assert run_scale.main([*PLAN, "--scale", "2x1"]) == 1
    assert "there is no evidence of an open gate" in capsys.readouterr().err
