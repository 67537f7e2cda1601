from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from ddp_ladder.ladder import Ladder
from ddp_ladder.settings_loader import load_settings

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


def test_look_ups(ladder: Ladder) -> None:
    assert ladder.results == "results"
    for job in ladder.plan.jobs:
        patterns = ladder.record_patterns(job.stage)
        assert sorted(pattern.format(scale=job.scale) for pattern in patterns) == sorted(ladder.records(job))
    assert ladder.scales("stage3") == ["2x1", "2x4"]
    assert ladder.last_gate == "results/gates/stage3.json"
    assert ladder.resource("2x4", "runtime") == 33
    assert ladder.resource("2x4", "nodes") == 2


def test_a_gate_waits_for_the_records_of_the_scales_at_which_something_is_to_do(ladder: Ladder) -> None:
    records = ladder.awaited_records("stage3")
    assert len(records) == len(set(records)) == 2 * 2 * 2 * 2
    assert records[:2] == [
        "results/runs/default/weak/2x1/r1/record.json",
        "results/runs/ring/weak/2x1/r1/record.json",
    ]
    assert records[-1] == "results/runs/ring/strong/2x4/r2/record.json"


def test_the_plans_first_scale_comes_first(ladder: Ladder) -> None:
    """Where scales run one after the other; each waits for the gate of the stage before alone."""
    assert [ladder.priority(scale) for scale in ("1x1", "2x1", "2x4")] == [3, 2, 1]
    assert [ladder.gate_before(ladder.stage_of(scale)) for scale in ("1x1", "2x4")] == [
        [],
        ["results/gates/stage1.json"],
    ]


def test_an_absent_stage_has_no_scales(ladder: Ladder) -> None:
    assert ladder.scales("stage2") == []
    assert re.fullmatch(ladder.scale_pattern("stage3"), "2x4")
    assert not re.fullmatch(ladder.scale_pattern("stage3"), "1x1")
    for scale in ("1x1", "1x2", "2x4", ""):
        assert not re.fullmatch(ladder.scale_pattern("stage2"), scale)


def test_preparation(ladder: Ladder) -> None:
    assert ladder.prepare_command == ["python", "prepare.py", "data/digits", "--seed=7"]
    assert ladder.prepared_data == ["data/digits/.prepared"]
    python = str(Path(sys.executable).resolve())
    other = make(site=SITE + f"software: {{python: {python}}}\n")
    assert other.prepare_command[0] == python


def test_nothing_to_prepare(ladder: Ladder) -> None:
    lines = [line for line in CONFIG.splitlines() if "prepare" not in line]
    other = make("\n".join(lines))
    assert (other.prepare_command, other.prepared_data) == ([], [])
