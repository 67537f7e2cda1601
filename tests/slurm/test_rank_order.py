"""Ranks follow the nodes of the allocation, whatever their names and addresses look like as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from cluster_config import Spec
from conftest import running
from project_copy import Checkout, copy_project
from scales import GPU_SITE, MEETING, prepare, salloc, scale_job, witnesses

pytestmark = pytest.mark.slurm

NODES = ["node9", "node10"]  # their addresses end in .9 and .10: as text node10 comes first
JOB = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4", "--mem=8000", "--gres=gpu:2"]


@pytest.fixture(scope="module")
def nine_and_ten(no_orphans: None) -> Iterator[Cluster]:
    with running(Spec(nodes=2, gpus=2, first=9)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def met(nine_and_ten: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A 2x2 with each launcher, in one allocation."""
    checkout = copy_project(tmp_path_factory.mktemp("project"))
    variants = {"default": {"launcher": "torchrun"}, "srun": {"launcher": "srun"}}
    prepare(checkout, MEETING, "2x2", GPU_SITE, variants=variants)
    salloc(nine_and_ten, checkout, JOB, scale_job("2x2"))
    return checkout


@pytest.mark.parametrize("variant", ["default", "srun"])
def test_rank_k_is_on_node_k(met: Checkout, nine_and_ten: Cluster, variant: str) -> None:
    run = f"{variant}/weak/2x2/r1"
    record = met.record(run)
    assert record["status"] == "ok", record["failure"]
    seen = witnesses(met, run)
    assert [rank["SLURMD_NODENAME"] for rank in seen] == [node for node in NODES for _ in range(2)]
    assert [(rank["GROUP_RANK"], rank["LOCAL_RANK"]) for rank in seen] == [(f"{k // 2}", f"{k % 2}") for k in range(4)]
    assert {rank["sum"] for rank in seen} == {10.0}
    assert {rank["MASTER_ADDR"] for rank in seen} == {nine_and_ten.addresses["node9"]}
    run_file = json.loads((met.results / "runs" / run / "run.json").read_text())
    assert run_file["nodes"] == record["world"]["nodes"] == record["world"]["hosts"] == NODES
    assert [(rank["node_rank"], rank["host"]) for rank in record["ranks"]] == [
        (k // 2, NODES[k // 2]) for k in range(4)
    ]


@pytest.mark.parametrize("variant", ["default", "srun"])
def test_job_sh_keeps_the_order_too(met: Checkout, nine_and_ten: Cluster, variant: str) -> None:
    script = met.results / "runs" / variant / "weak/2x2/r1/job.sh"
    (met.path / "loop.py").write_text(
        "import os\nos.write(1, f\"rank {os.environ['RANK']} on {os.environ['SLURMD_NODENAME']}\\n\".encode())\n"
    )
    job = int(nine_and_ten.run(["sbatch", "--parsable", str(script)], cwd=Path("/")).stdout)
    assert nine_and_ten.await_state(job, timeout_s=200) == "COMPLETED"
    said = (script.parent / f"job-{job}.log").read_text()
    assert sorted(line for line in said.splitlines() if line.startswith("rank ")) == [
        f"rank {k} on {NODES[k // 2]}" for k in range(4)
    ]
