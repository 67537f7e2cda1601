"""The preflight as a target of its own, in a job of a real Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster import Cluster
from ddp_ladder.nodes.sampler import read_machines
from project_copy import NO_TORCH, ONE_STAGE, copy_project
from scales import GPU_SITE

pytestmark = pytest.mark.slurm


def test_the_target_tests_the_scale_that_was_asked_for_and_trains_nothing(cluster: Cluster, tmp_path: Path) -> None:
    checkout = copy_project(tmp_path, cluster)
    stages = {**ONE_STAGE, "stage3": {"scales": ["2x1", "4x1"], "runtime": 5}}
    checkout.set_up(NO_TORCH, GPU_SITE, stages=stages)  # preflight.enabled is false: it is asked for
    asked = checkout.snakemake("preflight", "--profile", "profiles/slurm", "--config", "preflight_scale=2x1")
    assert asked.returncode == 0, asked.stdout
    assert "stage3 2x1: preflight passed" in asked.stdout
    result = json.loads((checkout.results / "preflight/2x1.json").read_text())
    assert result["launcher"] == "torchrun"
    assert "busbw_gb_per_s" in asked.stdout
    (described,) = read_machines(checkout.results).values()
    assert [machine.node for machine in described] == [row["node"] for row in result["nodes"]]
    assert all("; ib0" in machine.in_words for machine in described)
    assert sorted(path.name for path in (checkout.results / "preflight").iterdir()) == ["2x1", "2x1.json"]
    assert not (checkout.results / "runs").exists()
    assert list((checkout.results / "jobs").glob("*.json")) == []
