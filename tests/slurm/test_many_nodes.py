"""A job of 12 nodes, really: its next run does not wait for the record of the last one, and it leaves few files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Cluster
from cluster_config import Spec
from project_copy import NO_TORCH, copy_project
from scales import GPU_SITE, prepare, salloc, scale_job

pytestmark = pytest.mark.slurm

NODES = 12
SITE = {**GPU_SITE, "node": {"gpus": 1, "device": "cpu", "cpus": 1, "memory_mb": 400}}


def test_the_next_run_starts_first_and_three_files_of_a_node_are_left(
    module_cluster: Callable[[Spec], Cluster], tmp_path: Path
) -> None:
    cluster, checkout = module_cluster(Spec(nodes=NODES, gpus=1, cpus=1, memory_mb=500)), copy_project(tmp_path)
    variants = {"default": {"launcher": "srun"}}
    prepare(checkout, NO_TORCH, f"{NODES}x1", SITE, variants=variants, repeats=2, preflight={"enabled": False})
    said = salloc(cluster, checkout, [f"--nodes={NODES}", "--mem=400"], scale_job(f"{NODES}x1"))
    assert said.index("[2/2] default/weak/r2: started") < said.index("samples/s, "), said
    for repeat in (1, 2):
        run = f"default/weak/{NODES}x1/r{repeat}"
        record = checkout.record(run)
        assert record["status"] == "ok", record["failure"]
        assert len(record["ranks"]) == NODES
        files = [path.name for path in (checkout.results / "runs" / run).rglob("*.*") if path.suffix != ".csv"]
        assert len(files) <= 3 * NODES + 8, sorted(files)
