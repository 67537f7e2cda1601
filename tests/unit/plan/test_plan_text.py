from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.climb.ladder import runs_to_do, witnesses_to_do
from ddp_ladder.plan.plan import Plan, make_plan
from ddp_ladder.plan.text import plan_text
from ddp_ladder.settings.load import load_settings
from make_runs import write_ladder

REPOSITORY = Path(__file__).parents[3]
GOLDEN = Path(__file__).parents[1] / "golden" / "shipped_plan.txt"


@pytest.fixture
def climbed(tmp_path: Path) -> Plan:
    """A finished ladder; its plan knows where."""
    return replace(write_ladder(tmp_path), results=str(tmp_path))


def to_do(text: str) -> list[tuple[str, str, str]]:
    """Scale, runs to do and GPU hours of each row."""
    rows = [line for line in text.splitlines() if line.startswith("stage") and " min " in line]
    return [(row.split()[1], re.split(" +[0-9]+ min ", row)[0].split()[-1], row.split()[-1]) for row in rows]


def test_the_shipped_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    plan = make_plan(load_settings(Path("config/config.yaml"), Path("config/cluster.yaml")))
    monkeypatch.chdir(tmp_path)  # no results here
    to_do = runs_to_do(plan, RunRecords(tmp_path))
    text = plan_text(plan, plan.stages, to_do, witnesses_to_do(plan, to_do, tmp_path))
    assert f"{text}\n" == GOLDEN.read_text()


def test_a_ladder_that_starts_above_one_gpu_says_so(climbed: Plan) -> None:
    text = plan_text(Plan("here", "r", climbed.jobs[1:2], climbed.gates), ("stage2",), {})
    assert "The ladder starts at" not in text
    runs = tuple(run.replace(stage="stage1") for run in climbed.jobs[1].runs)
    first = replace(climbed.jobs[1], stage="stage1", runs=runs)
    text = plan_text(Plan("here", "r", (first,), climbed.gates), ("stage1",), {})
    assert "The ladder starts at 1x2: efficiencies are against it, and the plain baseline, of one GPU, is left " in text


def test_each_variant_has_its_command_once_and_one_without_the_batch_is_named(climbed: Plan) -> None:
    jobs = []
    for job in climbed.jobs:
        (first, *_) = job.runs
        ring = first.replace(variant="ring", args=("--fast",), args_template=("--fast",), env={"NCCL_ALGO": "Ring"})
        default = first.replace(args=("8",), args_template=("{batch_per_gpu}",))
        jobs.append(replace(job, runs=(default, ring, ring.replace(repeat=2))))
    text = plan_text(replace(climbed, jobs=tuple(jobs)), climbed.stages, {})
    script = climbed.jobs[0].runs[0].script
    assert text.count(f"    {script} 8\n") == len(jobs)
    assert text.count(f"    NCCL_ALGO=Ring {script} --fast\n") == 1
    assert "\n  1x1, variant ring: torchrun, " in text
    assert "{batch_per_gpu} is in no argument or variable of ring: " in text
