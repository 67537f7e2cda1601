"""Which runs follow their batches: one for all variants that are alike in what decides what is trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import sha256
from ddp_ladder.plan.plan import Plan, make_plan
from ddp_ladder.plan.short_runs import witness_key, witness_runs
from ddp_ladder.plan.text import plan_text
from test_plan import run_of, settings


def variants_of(plan: Plan) -> list[str]:
    return [" ".join(run.variants) for run in witness_runs(plan)]


def test_variants_of_another_launcher_or_network_share_a_run_and_others_have_their_own() -> None:
    variants = {
        "srun": {"launcher": "srun"},
        "default": {},
        "gloo": {"network": {"backend": "gloo", "interface": "eth0"}},
        "ring": {"env": {"NCCL_ALGO": "Ring"}},
        "longer": {"args": ["--epochs", 8]},
        "shuffled": {"env": {"SHUFFLE": 1}},
        "wrapped": {"wrapper": ["nice"]},
    }
    plan = make_plan(settings(variants=variants, modes=["weak", "strong"]))
    assert variants_of(plan) == ["default srun gloo ring plain", "longer", "shuffled", "wrapped"]


def test_it_is_short_untimed_and_has_places_of_its_own() -> None:
    keys = {"measure": {"max_steps": 500, "profile_steps": 5, "witness_steps": 50, "witness_s": 9}, "results": "out"}
    work = {"args": ["--save", "{run_dir}/state"], "directory": "{run_dir}", "samples_per_step": "{batch_per_gpu} * 2"}
    (run,) = witness_runs(make_plan(settings(workload=work, **keys)))
    spec = run.spec
    assert (spec.name, spec.max_steps, spec.max_seconds) == ("default/weak/1x1/r1", 50, 9)
    assert (spec.profile_steps, spec.count_flops, spec.samples_per_step) == (0, False, 128)
    assert spec.args == ("--save", "out/witness/default/runs/default/weak/1x1/r1/state")
    assert spec.directory == "out/witness/default/runs/default/weak/1x1/r1/work"


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": {"args": ["--batch", "{batch_per_gpu}", "--lr", "{lr}", "--workers", 2]}},
        {"workload": {"env": {"SHUFFLE": "1"}}},
        {"workload": {"batch_per_gpu": 32}},
        {"workload": {"samples_per_step": "{batch_per_gpu} * 2"}},
        {"workload": {"wrapper": ["nice"]}},
        {"workload": {"data_dir": "elsewhere"}},
        {"site": {"software": {"modules": ["torch/2.9"]}}},
        {"site": {"software": {"python": "/opt/python"}}},
        {"site": {"software": {"container": {"image": "/images/torch.sif"}}}},
    ],
)
def test_what_can_change_the_batches_that_are_trained_on_asks_for_another_run(changes: dict[str, Any]) -> None:
    def key(**keys: Any) -> str:
        return witness_runs(make_plan(settings(**keys)))[0].key

    assert key(**changes) != key()
    others = {"measure": {"max_steps": 500}, "repeats": 5}
    assert key(**others, workload={"seed": 9}, site={"launcher": "srun", "network": {"interface": "eth1"}}) == key()


def test_another_content_of_the_script_asks_for_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = Path("train.py")
    script.write_text("first = 1\n")
    plan = make_plan(settings())
    (before,) = witness_runs(plan)
    assert before.key == witness_key(before.spec, sha256(script.read_bytes()), 1)
    script.write_text("first = 2\n")
    assert witness_runs(plan)[0].key != before.key
    module = run_of(make_plan(settings(workload={"script": "-m train"})), "default/weak/1x1/r1")
    assert witness_key(module, "a", 1) == witness_key(module, None, 1)


def test_a_plan_says_what_they_are_and_how_long_they_take_at_most() -> None:
    plan = make_plan(settings(variants={"default": {}, "longer": {"args": ["--epochs", 8]}}))
    text = plan_text(plan, plan.stages, {}, witness_runs(plan))
    assert "Before the runs of 1x1: 2 witness runs (default, plain; longer), at most 5 min 00 s." in text
    assert "makes up to 200 steps while each batch is followed" in text
    assert "witness" not in plan_text(plan, plan.stages, {})
