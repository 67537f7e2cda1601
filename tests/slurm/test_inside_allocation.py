"""The ladder as `snakemake --profile profiles/allocation`, inside salloc and sbatch: scales are steps of one job."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from ddp_ladder.ledger.jobs import read_rows
from project_copy import EXPERIMENT, NO_TORCH, Checkout, copy_project
from scales import GPU_SITE, MEASURE, WITNESS, salloc, witnesses

pytestmark = pytest.mark.slurm

CLIMB = [sys.executable, "-m", "snakemake", "--profile", "profiles/allocation"]
TWO_NODES = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4", "--mem=8000", "--gres=gpu:2"]
STAGES: Mapping[str, Any] = EXPERIMENT["stages"]
TWO_NODES_ALONE = {"stage1": {"scales": ["2x1"], "runtime": 5}}
# What allocations of other shapes leave in the environment; srun would take each of them for its own.
FOREIGN = {
    "SLURM_NTASKS": "7",
    "SLURM_NTASKS_PER_NODE": "7",
    "SLURM_CPUS_PER_TASK": "3",
    "SLURM_MEM_PER_CPU": "90000",
    "SLURM_GPUS": "9",
    "SLURM_GPU_BIND": "none",
    "SLURM_TRES_PER_TASK": "gres/gpu:2",
    "SLURM_DISTRIBUTION": "cyclic",
    "SLURM_HOSTFILE": "/not/there",
    "SLURM_TIMELIMIT": "0:01",
}


def project(path: Path, stages: Mapping[str, Any] = STAGES) -> Checkout:
    checkout = copy_project(path)
    checkout.set_up(WITNESS + NO_TORCH, {**GPU_SITE, "launcher": "srun"}, stages=stages, measure=MEASURE)
    return checkout


@pytest.fixture(scope="module")
def climbed(cluster_without_accounting: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkout, str]:
    """In salloc, whose shell is on the login node."""
    checkout = project(tmp_path_factory.mktemp("project"))
    foreign = [f"{key}={value}" for key, value in FOREIGN.items()]
    return checkout, salloc(cluster_without_accounting, checkout, TWO_NODES, ["env", *foreign, *CLIMB, "stage3"])


def test_climbs_through_all_stages_in_one_job(climbed: tuple[Checkout, str]) -> None:
    checkout, printed = climbed
    assert re.findall(r"^gate (\w+): open", printed, re.MULTILINE) == ["stage1", "stage2", "stage3"]
    (job,) = re.findall(r"Granted job allocation (\d+)", printed)
    assert {checkout.record(f"default/weak/{scale}/r1")["job"]["id"] for scale in ("1x1", "1x2", "2x1")} == {job}
    rows = {row.scale: row for row in read_rows(checkout.results)}
    assert {(row.job_id, row.source, row.runs_ok) for row in rows.values()} == {(job, "none", 1)}
    assert {scale: row.gpus for scale, row in rows.items()} == {"1x1": 1, "1x2": 2, "2x1": 2}


@pytest.mark.parametrize(
    ("scale", "gpus", "cpus", "nodes"),
    [("1x1", "0", "2", ["node1"]), ("1x2", "0,1", "2", ["node1", "node1"]), ("2x1", "0", "2", ["node1", "node2"])],
)
def test_each_scale_has_its_share_of_the_allocation(
    climbed: tuple[Checkout, str], scale: str, gpus: str, cpus: str, nodes: list[str]
) -> None:
    seen = witnesses(climbed[0], f"default/weak/{scale}/r1")
    assert [rank["SLURMD_NODENAME"] for rank in seen] == nodes
    assert {rank["SEEN_GPUS"] for rank in seen} == {gpus}
    assert {rank["SLURM_CPUS_PER_TASK"] for rank in seen} == {cpus}
    assert {rank["SLURM_NTASKS"] for rank in seen} == {str(len(nodes))}


def test_the_runs_meet_on_the_first_node_and_not_where_snakemake_is(
    climbed: tuple[Checkout, str], cluster_without_accounting: Cluster
) -> None:
    run = climbed[0].results / "runs/default/weak/2x1/r1/run.json"
    assert json.loads(run.read_text())["rendezvous"]["host"] == cluster_without_accounting.addresses["node1"]


def test_climb_sh_is_the_whole_climb_as_one_batch_job(cluster_without_accounting: Cluster, tmp_path: Path) -> None:
    """Written on the login node with the settings of that call, and submitted as it says."""
    cluster, checkout = cluster_without_accounting, project(tmp_path, TWO_NODES_ALONE)
    (checkout.path / "config/cluster.yaml").rename(checkout.path / "here.yaml")
    (checkout.path / "config/config.yaml").rename(checkout.path / "mine.yaml")
    settings = ["--config", "experiment=mine.yaml", "cluster=here.yaml", "repeats=2"]
    printed = cluster.run([*CLIMB[:3], "eject", *settings], cwd=checkout.path, timeout_s=120).stdout
    (submit,) = re.findall(r"^    (sbatch .*climb\.sh)$", printed, re.MULTILINE)
    job = cluster.run([*submit.replace("sbatch", "sbatch --parsable").split()], cwd=checkout.path).stdout
    log = checkout.results / f"climb-{job.strip()}.log"
    assert cluster.await_state(int(job), timeout_s=300) == "COMPLETED", log.read_text()
    assert "gate stage1: open" in log.read_text()
    record = checkout.record("default/weak/2x1/r2")
    assert (record["job"]["id"], record["world"]["nodes"]) == (job.strip(), ["node1", "node2"])


def test_the_end_of_the_allocation_ends_the_climb_in_order(cluster_without_accounting: Cluster, tmp_path: Path) -> None:
    """SIGTERM to the batch script, its children and all steps, as Slurm sends it when a job's time is up."""
    cluster, checkout = cluster_without_accounting, project(tmp_path, TWO_NODES_ALONE)
    (checkout.path / "loop.py").write_text("import signal; signal.pause()")
    log = tmp_path / "said"
    job = cluster.sbatch(f"exec {shlex.join(CLIMB)}", *TWO_NODES, f"--output={log}", cwd=checkout.path)
    cluster.await_true(lambda: log.exists() and "r1: started" in log.read_text(), "slurmctld", "the first run", 120)
    cluster.run(["scancel", "--signal=TERM", "--full", str(job)])
    cluster.await_state(job, timeout_s=120)
    assert "SIGTERM: ending what runs; finished runs are kept" in log.read_text()
    assert "interrupted by SIGTERM" in log.read_text()
    assert json.loads((checkout.results / "start.lock1").read_text())["ended"]


def test_what_does_not_fit_is_reported_before_any_run(cluster_without_accounting: Cluster, tmp_path: Path) -> None:
    checkout = project(tmp_path, {**STAGES, "stage3": {"scales": ["2x2"], "runtime": 5}})
    argv = ["salloc", "--nodes=1", "--cpus-per-task=4", "--mem=8000", "--gres=gpu:1", *CLIMB]
    done = cluster_without_accounting.run(argv, cwd=checkout.path, timeout_s=120, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 1
    asks = "1x2 asks for 2 GPUs per node; 2x2 asks for 2 nodes and 2 GPUs per node"
    assert f"not every scale fits into it: {asks}" in said
    assert re.search(r"job \d+ offers 1 node, and on each 1 GPU, 4 CPUs and 8000 MB", said)
    assert "`salloc --nodes=2 --ntasks-per-node=1 --gres=gpu:2 " in said
    assert "`node` in config/cluster.yaml" in said
    assert "Traceback" not in said
    assert [path.name for path in checkout.results.iterdir()] == ["start.lock1"]
