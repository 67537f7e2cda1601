"""What the caller's shell holds for Slurm's commands reaches neither the jobs nor the questions about them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from cluster import Cluster
from project_copy import EXPERIMENT, NO_TORCH, ONE_STAGE, copy_project
from scales import GPU_SITE, MEASURE, WITNESS, witnesses

pytestmark = pytest.mark.slurm

HOSTILE = {
    "LOGNAME": "nobody",
    "USER": "nobody",
    "SALLOC_TIMELIMIT": "0:01",
    "SBATCH_GPUS": "7",
    "SBATCH_SIGNAL": "B:KILL@290",
    "SBATCH_TIMELIMIT": "0:01",
    "SLURM_CLUSTERS": "another",
    "SLURM_CPU_BIND": "verbose,map_cpu:0",
    "SLURM_TIME_FORMAT": "relative",
    "SQUEUE_FORMAT": "%t",
    "SQUEUE_STATES": "COMPLETED",
    "SRUN_CPUS_PER_TASK": "3",
}
CLIMB = [sys.executable, "-m", "snakemake", "--profile", "profiles/slurm", "stage1"]
IN_ANOTHER_JOB = ["salloc", "--nodes=1", "--ntasks=1", "--mem=100", "--time=9"]


def test_climbs_all_the_same_in_another_job(cluster_without_accounting: Cluster, tmp_path: Path) -> None:
    checkout = copy_project(tmp_path)
    workload = {**EXPERIMENT["workload"], "secrets": ["HF_TOKEN"]}
    site = {**GPU_SITE, "slurm": {"partition": "gpu"}, "launcher": "srun"}
    checkout.set_up(WITNESS + NO_TORCH, site, stages=ONE_STAGE, measure=MEASURE, workload=workload)
    argv = [
        *IN_ANOTHER_JOB,
        "env",
        "HF_TOKEN=a secret of the shell",
        *(f"{name}={value}" for name, value in HOSTILE.items()),
        *CLIMB,
    ]
    done = cluster_without_accounting.run(argv, cwd=checkout.path, timeout_s=300, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    (aside,) = re.findall("^set aside: (.*) \\(", said, re.MULTILINE)
    own = [name for name in HOSTILE if name.startswith("S") and not name.startswith("SLURM_")]
    outer = re.search(r"Granted job allocation (\d+)", said)
    assert outer
    own.append(f"SLURM_* of job {outer[1]}, in whose shell this was started")
    assert aside == ", ".join(own)
    job = checkout.record("default/weak/1x1/r1")["job"]["id"]
    assert re.search(rf"job {job} runs on node\d", said)
    assert "GONE" not in said
    assert job != outer[1]
    (rank,) = witnesses(checkout, "default/weak/1x1/r1")
    assert rank["SLURM_CPUS_PER_TASK"] == "2"
    # A secret arrives without being written; the witness writes its whole environment.
    assert rank["HF_TOKEN"] == "a secret of the shell"
    files = [file for file in (*checkout.results.rglob("*"), *(tmp_path / ".snakemake").rglob("*")) if file.is_file()]
    with_secret = [file.name for file in files if b"a secret of the shell" in file.read_bytes()]
    assert (with_secret, "a secret of the shell" in said) == (["witness0.json"], False)
    assert not [name for name in own if name in rank and name != "SLURM_CPU_BIND"]
