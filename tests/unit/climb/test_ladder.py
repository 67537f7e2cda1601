from __future__ import annotations

import json
from pathlib import Path

import pytest
from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.settings.load import load_settings

CONFIG = """\
workload:
  script: train.py
  args: ["{batch_per_gpu}"]
  batch_per_gpu: 64
  seed: 7
  data_dir: data/digits
  prepare: [prepare.py, "{data_dir}", "--seed={seed}"]
stages:
  stage1: {}
  stage3: {scales: [2x1, 2x4], runtime: 33}
repeats: 2
modes: [weak, strong]
variants: {default: {}, ring: {env: {NCCL_ALGO: Ring}}}
"""
SITE = "site: here\nnode: {gpus: 4, device: cuda, cpus: 8}\n"


def make(config: str = CONFIG, site: str = SITE) -> Ladder:
    Path("config.yaml").write_text(config)
    Path("cluster.yaml").write_text(site)
    return Ladder.of(load_settings(Path("config.yaml"), Path("cluster.yaml")))


@pytest.fixture
def ladder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ladder:
    monkeypatch.chdir(tmp_path)
    for script in ("train.py", "prepare.py"):
        Path(script).touch()
    return make()


def test_a_ladder_that_starts_at_another_scale(ladder: Ladder) -> None:
    """Its job asks for the GPUs of that scale."""
    Path("results").mkdir()
    Path("results/plan.json").write_text(json.dumps(ladder.plan.to_json()))
    stages = CONFIG.replace("stage1: {}", "stage1: {scales: [1x2]}").replace("[2x1, 2x4]", "[2x2, 2x4]")
    other = make(stages, SITE.replace("gpus: 4", "gpus: 4, gres: gpu"))
    job = other.job("1x2")
    assert (job.gres, job.cpus) == ("gpu:2", 4)
    assert "the settings have changed since" in other.changes_since_plan


def test_the_report_is_told_of_the_whole_training(ladder: Ladder) -> None:
    units = ["--units", ladder.plan.units.model_dump_json()]
    assert ladder.report_options(None) == units
    options = make(CONFIG + "report: {epochs: 90}\n").report_options("julich")
    assert options == ["--epochs", "90.0", *units, "--centre", "julich"]
    for key, given in (("samples", "1.5e10"), ("tokens", "15e9")):
        options = make(f"{CONFIG}report: {{{key}: {given}}}\n").report_options(None)
        assert options == [f"--{key}", "15000000000.0", *units]
