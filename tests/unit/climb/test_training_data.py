"""Training data: what is told of missing ones, and what prepares them, one process at a time."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.climb.start import data_problem, prepare_data
from ddp_ladder.common.messages import UserError
from ddp_ladder.settings.keys import Settings
from ddp_ladder.settings.load import load_settings

CONFIG = """\
workload: {{script: train.py, args: ["{{batch_per_gpu}}"], batch_per_gpu: 8, data_dir: {data_dir}, prepare: {prepare}}}
stages: {{stage1: {{}}}}
"""


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "checkout"
    path.mkdir()
    monkeypatch.chdir(path)
    for script in ("train.py", "prepare.py", "torch.sif"):
        Path(script).touch()
    return path


def settings(data_dir: str, prepare: str = "null", software: str = "") -> Settings:
    Path("config.yaml").write_text(CONFIG.format(data_dir=data_dir, prepare=prepare))
    Path("cluster.yaml").write_text(f"site: here\nnode: {{gpus: 1, device: cpu, cpus: 1}}\n{software}")
    return load_settings(Path("config.yaml"), Path("cluster.yaml"))


def problem_with(data_dir: str, on_nodes: bool = False) -> tuple[str, str]:
    found = data_problem(settings(data_dir).experiment, on_nodes)
    return (found[0], str(found[1])) if found else ("", "")


def test_data_that_are_missing_and_the_advice() -> None:
    outcome, text = problem_with("data/imagenet")
    assert (outcome, text.splitlines()[0]) == ("error", "config.yaml: workload.data_dir: the training data are missing")
    assert "data/imagenet: No such file or directory; " in text
    assert "workload.prepare" in text
    assert problem_with("data/imagenet", on_nodes=True)[0] == "error", "the nodes share the checkout"
    (advice,) = [line for line in text.splitlines() if line.startswith("  next")]
    subprocess.run(advice.rpartition(": ")[2], shell=True, check=True)
    assert problem_with("data/imagenet") == ("", "")


def test_no_data_none_expected_or_prepared_ones_are_no_problem() -> None:
    assert problem_with("null") == ("", "")
    assert data_problem(settings("data/mine", "[prepare.py]").experiment, False) is None


def prepared(body: str, **changes: Any) -> int:
    """Run workload.prepare with this script; changes: of the training's spec."""
    Path("prepare.py").write_text(body)
    ladder = Ladder.of(settings("data/mine", '[prepare.py, "{data_dir}"]'))
    Path("data/mine").mkdir(parents=True, exist_ok=True)
    spec = ladder.plan.runs[0].replace(**changes)
    return prepare_data(spec, ladder.settings.site, ladder.prepare_command, Path(ladder.data_marker))


def test_data_are_prepared_by_one_start_at_a_time(capfd: pytest.CaptureFixture[str]) -> None:
    """How a second start waits for the lock: tests/unit/slurm/test_lock.py."""
    script = "from pathlib import Path; print('prepared', [*Path('data/mine').glob('.prepare*')])"
    assert prepared(script) == 0
    assert ".prepare.lock1" in capfd.readouterr().out
    assert json.loads(Path("data/mine/.prepared").read_text()) == {"command": ["prepare.py", "data/mine"]}


def test_a_prepare_that_fails_or_cannot_be_started_leaves_no_marker() -> None:
    assert prepared("raise SystemExit(3)") == 3
    with pytest.raises(UserError) as caught:
        prepared("", setup="echo no licence; false")
    assert str(caught.value).startswith(
        "cluster.yaml: software.setup: the snippet failed with exit code 1\nno licence\n"
    )
    other = Path("of_another_architecture")
    other.write_bytes(b"\x7fELF")
    other.chmod(0o755)
    with pytest.raises(UserError) as caught:
        prepared("", python=f"./{other}")
    assert "software.python: ./of_another_architecture cannot be started: Exec format error" in str(caught.value)
    assert "set workload.prepare: null" in str(caught.value)
    assert not Path("data/mine/.prepared").exists()
