"""The search for the batch on a real Slurm: in the first scale's job, without another one, or alone with `fit`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from cluster import Cluster
from project_copy import HUNGRY, ONE_STAGE, Checkout, copy_project
from scales import GPU_SITE

pytestmark = pytest.mark.slurm

SLURM = ("--profile", "profiles/slurm")


def configured(cluster: Cluster, directory: Path) -> Checkout:
    checkout = copy_project(directory, cluster)
    workload = {"script": "loop.py", "args": ["{batch_per_gpu}"], "batch_per_gpu": {"from": 8, "to": 512}}
    stages = {**ONE_STAGE, "stage2": {"scales": ["1x2"], "runtime": 5}}
    checkout.set_up(HUNGRY, {**GPU_SITE, "launcher": "srun"}, workload=workload, stages=stages)
    return checkout


def jobs_of(checkout: Checkout) -> list[tuple[str, str]]:
    with (checkout.results / "accounting.csv").open() as file:
        return [(row["kind"], row["scale"]) for row in csv.DictReader(file)]


def test_the_first_job_searches_and_the_jobs_above_use_its_choice(
    cluster_without_accounting: Cluster, tmp_path: Path
) -> None:
    checkout = configured(cluster_without_accounting, tmp_path)
    done = checkout.snakemake(*SLURM)
    assert done.returncode == 0, done.stdout
    assert "stage1 1x1: batch 128 per GPU: out of memory: " in done.stdout
    chosen = json.loads((checkout.results / "fit/1x1.json").read_text())["chosen"]
    records = [checkout.record(f"default/weak/{scale}/r1") for scale in ("1x1", "1x2")]
    assert [record["spec"]["batch_per_gpu"] for record in records] == [chosen] * 2
    assert jobs_of(checkout) == [("measure", "1x1"), ("measure", "1x2")]
    assert "the settings have changed" not in done.stdout
    again = checkout.snakemake(*SLURM)
    assert again.returncode == 0, again.stdout
    assert "nothing to measure" in again.stdout
    # An edited script is searched again. With the same choice, no run is missing: no other job waits in the queue.
    with (checkout.path / "loop.py").open("a") as script:
        script.write("# edited\n")
    before = checkout.run_times()
    edited = checkout.snakemake(*SLURM)
    assert edited.returncode == 0, edited.stdout
    assert "searching the batch per GPU" in edited.stdout
    assert "stage2 1x2: every run is kept, so no job is submitted" in edited.stdout
    assert [scale for _, scale in jobs_of(checkout)] == ["1x1", "1x2", "1x1"]
    assert checkout.run_times() == before
    assert "nothing to measure" in checkout.snakemake(*SLURM).stdout
    # What Slurm gives the job is its limit: half of the node's memory for one of two GPUs.
    assert records[0]["ranks"][0]["memory_limit_bytes"]["host"] <= 4000 * 1024**2


def test_fit_is_one_job_that_only_searches(cluster_without_accounting: Cluster, tmp_path: Path) -> None:
    checkout = configured(cluster_without_accounting, tmp_path)
    done = checkout.snakemake("fit", *SLURM)
    assert done.returncode == 0, done.stdout
    assert "Chosen: " in done.stdout
    assert jobs_of(checkout) == [("fit", "1x1")]
    assert not (checkout.results / "runs").exists()
