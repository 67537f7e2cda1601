"""`jobs: 2` on a real Slurm: each scale is measured by two jobs, one after the other, also over an interruption."""

from __future__ import annotations

import csv
import re
import signal
from pathlib import Path

import pytest
import yaml
from climbs import climb
from cluster import Cluster
from project_copy import copy_project

pytestmark = pytest.mark.slurm

SITE = {
    "site": "test",
    "slurm": {"partition": "gpu"},
    "node": {"gpus": 2, "device": "cpu", "gres": "gpu", "cpus": 4, "memory_mb": 8000},
}


def test_each_scale_is_measured_by_two_jobs(cluster_without_accounting: Cluster, tmp_path: Path) -> None:
    checkout = copy_project(tmp_path, cluster_without_accounting)
    (checkout.path / "config/cluster.yaml").write_text(yaml.safe_dump(SITE))
    stages = {"stage1": {"scales": ["1x1"], "runtime": 5}, "stage2": {"scales": ["1x2"], "runtime": 5}}
    checkout.configure(stages=stages, repeats=2, jobs=2)
    checkout.without_torch()
    first = climb(checkout)
    first.await_line("stage1 1x1: job 1 of 2 done; job 2 is submitted")
    first.await_line(r"(?s)1x1: job \d+ submitted.*1x1: job \d+ submitted")
    first.process.send_signal(signal.SIGINT)
    assert first.end() != 0
    cluster_without_accounting.await_idle()
    kept = {run: at for run, at in checkout.run_times().items() if run.endswith(("r1", "r2"))}
    assert set(kept) == {"default/weak/1x1/r1", "default/weak/1x1/r2"}
    second = checkout.snakemake("--profile", "profiles/slurm")
    assert second.returncode == 0, second.stdout
    assert kept.items() <= checkout.run_times().items()
    by = {
        scale: [checkout.record(f"default/weak/{scale}/r{k}")["job"]["id"] for k in (1, 2, 3, 4)]
        for scale in ("1x1", "1x2")
    }
    assert all(jobs[0] == jobs[1] != jobs[2] == jobs[3] for jobs in by.values())
    submitted = re.findall(r"(\dx\d): job (\d+) submitted", second.stdout)
    assert submitted == [("1x1", by["1x1"][2]), ("1x2", by["1x2"][0]), ("1x2", by["1x2"][2])]
    assert "1x2: job 1 of 2 done; job 2 is submitted" in second.stdout
    with (checkout.results / "report/scaling.csv").open() as file:
        rows = {row["stage"]: row for row in csv.DictReader(file)}
    assert {row["jobs"] for row in rows.values()} == {"2"}
    assert float(rows["stage2"]["efficiency_low"]) < float(rows["stage2"]["efficiency_high"])
    made = checkout.run_times()
    third = checkout.snakemake("--profile", "profiles/slurm")
    assert third.returncode == 0, third.stdout
    assert "nothing to measure" in third.stdout
    assert "submitted" not in third.stdout
    assert checkout.run_times() == made
