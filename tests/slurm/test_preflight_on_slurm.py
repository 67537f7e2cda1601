"""The preflight in jobs of a real Slurm: with both launchers, as a target of its own, and with a slow link."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from cluster_config import Spec
from ddp_ladder.nodes.describe import read_machines
from project_copy import NO_TORCH, ONE_STAGE, Checkout, copy_project
from scales import GPU_SITE, prepare, salloc, scale_job

pytestmark = pytest.mark.slurm

JOB = ["--ntasks-per-node=1", "--cpus-per-task=2", "--mem=8000", "--gres=gpu:2"]
# This machine has two CPUs, however many Slurm counts.
SITE = {**GPU_SITE, "node": {**GPU_SITE["node"], "cpus": 2}}


@pytest.fixture(scope="module")
def four_nodes(module_cluster: Callable[[Spec], Cluster]) -> Cluster:
    """A cluster of its own: a test slows a link."""
    return module_cluster(Spec(nodes=4, gpus=2))


def run_alone(cluster: Cluster, path: Path, scale: str, launcher: str, **preflight: Any) -> tuple[Checkout, str]:
    """Run the preflight of a scale in an allocation; return its output too."""
    checkout = copy_project(path)
    wanted = {"enabled": True, "timeout_s": 60, **preflight}
    prepare(checkout, NO_TORCH, scale, {**SITE, "launcher": launcher}, preflight=wanted)
    argv = [*scale_job(scale), "--preflight"]
    return checkout, salloc(cluster, checkout, [f"--nodes={scale.partition('x')[0]}", *JOB], argv)


def result(checkout: Checkout, scale: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((checkout.results / f"preflight/{scale}.json").read_text())
    return found


def test_a_slow_link_is_named_by_its_node(four_nodes: Cluster, tmp_path: Path) -> None:
    slow = "qdisc add dev ib0 root tbf rate 100mbit burst 64kb latency 300ms"
    four_nodes.run(["tc", *slow.split()], node="node3")
    try:
        checkout, _ = run_alone(four_nodes, tmp_path, "4x1", "torchrun", min_busbw_gb_per_s=1000)
    finally:
        four_nodes.run(["tc", "qdisc", "del", "dev", "ib0", "root"], node="node3")
    found = result(checkout, "4x1")
    assert len(found["pairs"]) == 4
    (failed,) = (one for one in found["findings"] if one["severity"] == "error")
    assert failed["place"] == "node3", found["pairs"]
    assert "node3 is slow" in failed["measured"]
    assert "slurm.exclude: node3" in failed["next"]


def test_the_target_tests_the_scale_that_was_asked_for_and_trains_nothing(four_nodes: Cluster, tmp_path: Path) -> None:
    checkout = copy_project(tmp_path, four_nodes)
    stages = {**ONE_STAGE, "stage3": {"scales": ["2x1", "4x1"], "runtime": 5}}
    checkout.set_up(NO_TORCH, SITE, stages=stages)  # preflight.enabled is false: it is asked for
    asked = checkout.snakemake("preflight", "--profile", "profiles/slurm", "--config", "preflight_scale=2x1")
    assert asked.returncode == 0, asked.stdout
    assert "stage3 2x1: preflight passed" in asked.stdout
    assert result(checkout, "2x1")["launcher"] == "torchrun"
    assert "busbw_gb_per_s" in asked.stdout
    (described,) = read_machines(checkout.results).values()
    assert [machine.node for machine in described] == [row["node"] for row in result(checkout, "2x1")["nodes"]]
    assert all("; ib0" in machine.in_words for machine in described)
    assert sorted(path.name for path in (checkout.results / "preflight").iterdir()) == ["2x1", "2x1.json"]
    assert not (checkout.results / "runs").exists()
    assert list((checkout.results / "jobs").glob("*.json")) == []
