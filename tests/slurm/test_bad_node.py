"""A node that fails the preflight on a real Slurm: the scale is submitted once more without it."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from cluster_config import Spec
from faults import NO_SHARED_MEMORY, PREFLIGHT, SITE
from project_copy import NO_TORCH, Checkout, copy_project, last_box

pytestmark = pytest.mark.slurm

CONFIG: Mapping[str, Any] = {**PREFLIGHT, "stages": {"stage1": {"scales": ["2x1"], "runtime": 5}}}


@pytest.fixture(scope="module")
def three_nodes(module_cluster: Callable[[Spec], Cluster]) -> Cluster:
    return module_cluster(Spec(nodes=3, gpus=2, cpus=2, memory_mb=4000))


def ladder(directory: Path, cluster: Cluster, partition: str) -> Checkout:
    """Return a checkout whose scale 2x1 meets a node2 on which nothing can be written to /dev/shm."""
    checkout = copy_project(directory, cluster)
    cluster.run(NO_SHARED_MEMORY, node="node2")
    site = {**SITE, "slurm": {"partition": partition, "replace_bad_node": True}}
    checkout.set_up(NO_TORCH, site, **CONFIG)
    return checkout


def bad_nodes(checkout: Checkout) -> list[str]:
    listed = json.loads((checkout.results / "bad_nodes.json").read_text())["nodes"]
    assert all("/dev/shm cannot be written" in node["findings"][0]["measured"] for node in listed)
    return [node["node"] for node in listed]


def test_one_bad_node_is_replaced_once(three_nodes: Cluster, tmp_path: Path) -> None:
    checkout = ladder(tmp_path, three_nodes, "gpu")
    climb = checkout.snakemake("--profile", "profiles/slurm")
    assert climb.returncode == 0, climb.stdout
    jobs = re.findall(r"stage1 2x1: job (\d+) runs on (\S+)", climb.stdout)
    assert [nodes for _, nodes in jobs] == ["node[1-2]", "node[1,3]"]
    said = f"stage1 2x1: node2 failed the preflight of job {jobs[0][0]}"
    assert climb.stdout.count(said) == 1
    assert bad_nodes(checkout) == ["node2"]
    gate = json.loads((checkout.results / "gates/stage1.json").read_text())
    assert next(note["measured"] for note in gate["judged"] if note["kind"] == "replaced node").startswith("node2")
    assert "for the support desk" in (checkout.results / "report/index.html").read_text()
    with (checkout.results / "accounting.csv").open() as file:
        rows = {row["job_id"]: row["bad_node"] for row in csv.DictReader(file)}
    assert [rows[job] for job, _ in jobs] == ["node2", ""]


def test_a_bad_node_that_cannot_be_replaced(three_nodes: Cluster, tmp_path: Path) -> None:
    """Slurm refuses a job of two nodes without one of the two of its partition: the cause is the bad node."""
    checkout = ladder(tmp_path, three_nodes, "debug")
    climb = checkout.snakemake("--profile", "profiles/slurm")
    assert climb.returncode == 1, climb.stdout
    box = last_box(climb.stdout)
    found = r"node2 failed the preflight of job \d+: /dev/shm cannot .*; a job without node2 is refused: sbatch: .*"
    assert re.search(found, box["measured"]), box
    assert "1. tell the site's support; once it is repaired, delete it from results/bad_nodes" in box["next"]
    assert bad_nodes(checkout) == ["node2"]
