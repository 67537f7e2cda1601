"""The ready-made experiments: each is valid on its site, plans what its guide did, and is what its comments say."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path

import pytest
from ddp_ladder.plan.plan import Plan, make_plan
from ddp_ladder.settings.load import load_settings

REPOSITORY = Path(__file__).parents[3]
EXPERIMENTS = REPOSITORY / "config" / "experiments"
SITES = {
    "digits": "local", "enccs-mnist": "leonardo", "torchrun-or-srun": "leonardo", "olivia-cifar": "olivia",
    "vega-resnet50": "vega", "ethernet6-mlp": "ethernet6", "strategies": "leonardo",
}  # fmt: skip


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)


@functools.cache
def plan(name: str) -> Plan:
    return make_plan(load_settings(EXPERIMENTS / f"{name}.yaml", REPOSITORY / f"config/sites/{SITES[name]}.yaml"))


def scales(plan: Plan) -> dict[str, list[str]]:
    return {stage: [str(job.scale) for job in plan.stage_jobs(stage)] for stage in plan.stages}


@pytest.mark.parametrize("name", SITES)
def test_the_script_takes_every_run_s_arguments_and_the_file_says_how_to_run_it(name: str) -> None:
    for run in plan(name).runs:
        importlib.import_module(Path(run.script).stem).arguments(list(run.args))
    text = (EXPERIMENTS / f"{name}.yaml").read_text()
    if name != "digits":
        assert f"cp config/sites/{SITES[name]}.yaml config/cluster.yaml" in text
        assert f"--config experiment=config/experiments/{name}.yaml" in text
        assert f"results: results/{name}\n" in text
        assert f"experiment=config/experiments/{name}.yaml overlay=config/laptop.yaml" in text


@pytest.mark.parametrize("name", SITES)
def test_the_overlay_scales_each_experiment_down_for_a_laptop(name: str) -> None:
    """tests/workflow/test_as_typed.py plans one of them so."""
    site, overlay = REPOSITORY / "config/sites/local.yaml", {"overlay": "config/laptop.yaml"}
    small = make_plan(load_settings(EXPERIMENTS / f"{name}.yaml", site, overlay))
    assert scales(small) == {"stage1": ["1x1"], "stage2": ["1x2"], "stage3": ["2x1"]}
    assert {(run.backend, run.max_steps, run.repeat) for run in small.runs} == {("gloo", 30, 1)}
    assert max(run.global_batch for run in small.runs) <= 8
    assert {run.variant for run in small.runs} == {run.variant for run in plan(name).runs}
    for run in small.runs:
        importlib.import_module(Path(run.script).stem).arguments(list(run.args))


def test_the_guides_trainings_like_for_like() -> None:
    olivia = plan("olivia-cifar")
    assert scales(olivia) == {"stage1": ["1x1"], "stage2": ["1x4"], "stage3": ["2x4"]}
    by_scale = {str(run.scale): run for run in olivia.runs if run.variant == "default"}
    assert {scale: run.global_batch for scale, run in by_scale.items()} == {"1x1": 256, "1x4": 1024, "2x4": 2048}
    args = importlib.import_module("cifar").arguments(list(by_scale["2x4"].args))
    # torchrun ... --batch-size 2048 --base-lr 0.04, in the guide
    assert (args.batch_size, args.base_lr) == (2048, pytest.approx(0.04))
    vega = plan("vega-resnet50")
    assert scales(vega) == {"stage1": ["1x1"], "stage2": ["1x2", "1x4"], "stage3": ["2x4"]}
    assert {run.batch_per_gpu for run in vega.runs} == {256}
    ethernet = plan("ethernet6-mlp")
    assert scales(ethernet) == {"stage1": ["1x1"], "stage3": ["2x1", "4x1", "6x1"]}
    for run in ethernet.runs:
        assert run.args[run.args.index("--backend") + 1] == run.backend
    assert {run.backend for run in ethernet.runs if run.variant == "gloo"} == {"gloo"}
    assert {run.global_batch for run in ethernet.runs if str(run.scale) == "6x1"} == {384}
