"""Following a closed gate's advice: what only the judgement depends on measures nothing again."""

from __future__ import annotations

import json
import re
from typing import Any

from project_copy import LOOP, Checkout

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
