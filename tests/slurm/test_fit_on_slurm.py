"""The search for the batch on a real Slurm, alone with `fit`. Of a climb: tests/workflow/test_batch_that_fits.py."""

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


def test_the_search_is_a_job_of_its_own_and_the_jobs_of_a_climb_use_its_choice(
    cluster_without_accounting: Cluster, tmp_path: Path
) -> None:
    checkout = configured(cluster_without_accounting, tmp_path)
    alone = checkout.snakemake("fit", *SLURM)
    assert alone.returncode == 0, alone.stdout
    assert "batch 128 per GPU: out of memory: " in alone.stdout
    assert jobs_of(checkout) == [("fit", "1x1")]
    assert not (checkout.results / "runs").exists()
    done = checkout.snakemake(*SLURM)
    assert done.returncode == 0, done.stdout
    chosen = json.loads((checkout.results / "fit/1x1.json").read_text())["chosen"]
    records = [checkout.record(f"default/weak/{scale}/r1") for scale in ("1x1", "1x2")]
    assert [record["spec"]["batch_per_gpu"] for record in records] == [chosen] * 2
    assert jobs_of(checkout)[1:] == [("measure", "1x1"), ("measure", "1x2")]
    assert "the settings have changed" not in done.stdout
    assert "searching" not in done.stdout
    # What Slurm gives the job is its limit: half of the node's memory for one of two GPUs.
    assert records[0]["ranks"][0]["memory_limit_bytes"]["host"] <= 4000 * 1024**2
