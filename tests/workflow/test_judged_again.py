"""Following a closed gate's advice: what only the judgement depends on measures nothing again."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

from project_copy import LOOP, NO_TORCH, Checkout

ALL = ("--cores", "all")
TWO_STAGES: dict[str, Any] = {
    "stage1": {"scales": ["1x1"], "runtime": 5},
    "stage2": {"scales": ["1x2"], "runtime": 5, "gate": {"min_efficiency": 0.001}},
}


def box_of(checkout: Checkout) -> dict[str, str]:
    """The gate that closed, as its file has it."""
    found: dict[str, str] = json.loads((checkout.results / "gates/stage2.closed.json").read_text())
    return found


def test_workers_divided_among_the_ranks_of_a_node_as_the_advice_says(checkout: Checkout) -> None:
    checkout.configure(stages=TWO_STAGES)
    checkout.site(launcher="srun")
    workers = "num_workers=2 // int(os.environ['LOCAL_WORLD_SIZE'])"
    (checkout.path / "loop.py").write_text(LOOP.replace("sampler=sampler)", f"sampler=sampler, {workers})"))
    assert checkout.snakemake(*ALL).returncode != 0
    box = box_of(checkout)
    assert "num_workers: 2 at 1x1, 1 at 1x2" in box["why"]
    line = re.search(r"`(fingerprint: [^`]+)`", box["next"])
    assert line is not None

    before = checkout.run_times()
    config = checkout.path / "config/config.yaml"
    config.write_text(config.read_text() + line[1] + "\n")
    climbed = checkout.snakemake(*ALL)
    assert climbed.returncode == 0, climbed.stdout
    assert checkout.run_times() == before
    assert "allowed to differ: num_workers: 2 at 1x1, 1 at 1x2" in climbed.stdout
    assert "allowed to differ" in (checkout.results / "report/index.html").read_text()


def test_a_disturbed_baseline_is_measured_again_as_the_advice_says(checkout: Checkout) -> None:
    checkout.configure(
        stages={
            "stage1": TWO_STAGES["stage1"],
            "stage2": {"scales": ["1x2"], "runtime": 5, "gate": {"max_efficiency": 1.05}},
        }
    )
    slow = "(os.path.exists('load') and os.environ['WORLD_SIZE'] == '1') * 0.002 + 0.001"
    checkout.without_torch(NO_TORCH.replace("0.001", slow))
    (checkout.path / "load").touch()
    assert checkout.snakemake(*ALL).returncode != 0
    box = box_of(checkout)
    assert "baseline: efficiency" in box["why"]
    named = re.search(r"delete (\S+) and start snakemake again", box["next"])
    assert named is not None
    assert named[1] == "results/runs/default/weak/1x1"

    before = checkout.run_times()
    (checkout.path / "load").unlink()
    shutil.rmtree(checkout.path / named[1])
    again = checkout.snakemake("stage2", *ALL)
    assert again.returncode == 0, again.stdout
    after = checkout.run_times()
    assert {run for run in after if after[run] != before[run]} == {"default/weak/1x1/r1"}
    assert "gate stage1: open" in again.stdout
    assert "gate stage2: open" in again.stdout
