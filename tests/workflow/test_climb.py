"""The ladder end to end on this machine. Nothing is trained: for that see test_climb_shipped.py."""

from __future__ import annotations

import itertools
import json
import subprocess

import yaml
from project_copy import NO_TORCH, Checkout

ALL = ("--cores", "all")
Climbed = tuple[Checkout, subprocess.CompletedProcess[str]]


def test_closed_gate_leaves_nothing_of_the_next_stage(checkout: Checkout) -> None:
    checkout.without_torch()
    config = yaml.safe_load((checkout.path / "config/config.yaml").read_text())
    gate = config["stages"]["stage2"]["gate"]
    gate["min_samples_per_s"] = 10**12
    (checkout.path / "config/config.yaml").write_text(yaml.safe_dump(config))
    climbed = checkout.snakemake(*ALL)
    assert climbed.returncode != 0
    assert "Traceback" not in climbed.stdout
    assert not list(checkout.results.rglob("*2x1*"))
    assert not (checkout.results / "gates/stage2.json").exists()
    assert json.loads((checkout.results / "gates/stage2.closed.json").read_text())["verdict"] == "closed"
    assert checkout.processes() == []
    box = climbed.stdout[climbed.stdout.rindex("| verdict") :]
    for label in ("measured", "wanted", "next"):
        assert f"| {label}" in box
    assert "stages.stage2.gate.min_samples_per_s" in box
    assert "Stopped at the gate of stage 2" in (checkout.results / "report/index.html").read_text()

    # The threshold is the only thing in the way: lowering it judges again, and measures nothing again.
    before = checkout.run_times()
    del gate["min_samples_per_s"]
    (checkout.path / "config/config.yaml").write_text(yaml.safe_dump(config))
    climbed = checkout.snakemake("stage3", *ALL)
    assert climbed.returncode == 0, climbed.stdout
    after = checkout.run_times()
    assert {run for run in after if after[run] != before.get(run)} == {"default/weak/2x1/r1"}
    assert not (checkout.results / "gates/stage2.closed.json").exists()


def test_variants_modes_and_repeats_interleave_and_scales_never_overlap(checkout: Checkout) -> None:
    checkout.configure(
        repeats=2,
        variants={"default": {}, "b": {"env": {"MINE": 2}}},
        modes=["weak", "strong"],
        stages={
            "stage1": {"scales": ["1x1"], "runtime": 5},
            "stage3": {"scales": ["2x2"], "runtime": 5},
        },
    )
    checkout.without_torch(NO_TORCH + "print('mine:', os.getenv('MINE'))\n")
    climbed = checkout.snakemake("stage3", "--cores", "8")
    assert climbed.returncode == 0, climbed.stdout
    spans = []
    for file in checkout.results.glob("runs/*/*/*/r*/ended.json"):
        ended = json.loads(file.read_text())
        spans.append((ended["started_at_s"], ended["ended_at_s"], file.parts[-5:-1]))
    spans.sort()
    assert len(spans) == 2 * 8
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    order = list(itertools.product(("weak", "strong"), ("default", "b")))
    expected = [("r1", *one) for one in order] + [("r2", *one) for one in reversed(order)]
    assert [(repeat, mode, variant) for variant, mode, _, repeat in (span[2] for span in spans[:8])] == expected
    strong = checkout.record("default/strong/2x2/r1")["spec"]
    assert (strong["batch_per_gpu"], strong["global_batch"]) == (4, 16)
    logs = {variant: checkout.results / f"runs/{variant}/weak/2x2/r1/train.log" for variant in ("default", "b")}
    assert {variant: log.read_text().count("mine: 2\n") for variant, log in logs.items()} == {"default": 0, "b": 4}


def test_a_site_with_one_gpu_per_node_has_no_stage_2(checkout: Checkout) -> None:
    checkout.site(node={"gpus": 1, "device": "cpu", "cpus": 1})
    stages = {
        "stage1": {"scales": ["1x1"], "runtime": 5},
        "stage3": {"scales": ["2x1"], "runtime": 5},
    }
    checkout.configure(stages=stages)
    checkout.without_torch()
    climbed = checkout.snakemake("stage3", *ALL)
    assert climbed.returncode == 0, climbed.stdout
    assert sorted(path.name for path in (checkout.results / "gates").iterdir()) == [
        "stage1.json",
        "stage3.json",
    ]
    asked = checkout.snakemake("stage2", *ALL)
    assert asked.returncode != 0
    assert "config/config.yaml: stages.stage2: this experiment has no stage2" in asked.stdout
    assert "Traceback" not in asked.stdout


def test_a_script_that_needs_a_launcher_has_no_plain_baseline(checkout: Checkout) -> None:
    stages = {"stage1": {"scales": ["1x1"], "runtime": 5}}
    checkout.configure(stages=stages, repeats=2, measure={"warmup_steps": 5, "min_steps": 10})
    checkout.without_torch("import os\nrank = int(os.environ['RANK'])\n" + NO_TORCH)
    climbed = checkout.snakemake(*ALL)
    assert climbed.returncode == 0, climbed.stdout
    assert "gate stage1: open" in climbed.stdout
    assert climbed.stdout.count("no plain baseline: rank 0: KeyError: 'RANK'") == 1  # not tried for the second repeat
    assert "failed without a launcher" in (checkout.results / "report/scaling.md").read_text()
    assert "nothing to measure" in checkout.snakemake(*ALL).stdout  # nor by the next start
