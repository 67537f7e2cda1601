"""The search for the batch on a real Slurm: in the first scale's job, without another one, or alone with `fit`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from cluster import Cluster
from project_copy import HUNGRY, ONE_STAGE, Checkout, copy_project, last_box
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


def test_the_search_is_a_job_of_its_own_or_the_begin_of_the_first_and_the_jobs_above_use_its_choice(
    cluster_without_accounting: Cluster, tmp_path: Path
) -> None:
    checkout = configured(cluster_without_accounting, tmp_path)
    script, broken = (checkout.path / "loop.py").read_text(), checkout.path / "broken"
    is_bad = f"sys.argv[1] == '32' and os.path.exists({str(broken)!r})"
    bad = f"import os, sys\nif {is_bad}: raise ValueError('not my number')\n"
    (checkout.path / "loop.py").write_text(bad + script)
    broken.touch()
    failed = checkout.snakemake("fit", *SLURM)
    box = last_box(failed.stdout)
    assert "workload.batch_per_gpu: the trial of batch 32 failed: the script raised an exception" in box["found"]
    assert box["next"].startswith("read the traceback") or "train.log" in box["next"], box
    broken.unlink()
    alone = checkout.snakemake("fit", *SLURM)
    assert alone.returncode == 0, alone.stdout
    assert "batch 128 per GPU: out of memory: " in alone.stdout
    assert "with 2 trials of an earlier job" in alone.stdout
    assert jobs_of(checkout) == [("fit", "1x1")] * 2
    assert not (checkout.results / "runs").exists()
    done = checkout.snakemake(*SLURM)
    assert done.returncode == 0, done.stdout
    chosen = json.loads((checkout.results / "fit/1x1.json").read_text())["chosen"]
    records = [checkout.record(f"default/weak/{scale}/r1") for scale in ("1x1", "1x2")]
    assert [record["spec"]["batch_per_gpu"] for record in records] == [chosen] * 2
    assert jobs_of(checkout)[2:] == [("measure", "1x1"), ("measure", "1x2")]
    assert "the settings have changed" not in done.stdout
    assert "searching" not in done.stdout
    # An edited script is searched again. With the same choice, no run is missing: no other job waits in the queue.
    with (checkout.path / "loop.py").open("a") as script:
        script.write("# edited\n")
    before = checkout.run_times()
    edited = checkout.snakemake(*SLURM)
    assert edited.returncode == 0, edited.stdout
    assert "searching the batch per GPU" in edited.stdout
    assert "stage2 1x2: every run is kept, so no job is submitted" in edited.stdout
    assert jobs_of(checkout)[4:] == [("measure", "1x1")]
    assert checkout.run_times() == before
    # What Slurm gives the job is its limit: half of the node's memory for one of two GPUs.
    assert records[0]["ranks"][0]["memory_limit_bytes"]["host"] <= 4000 * 1024**2
