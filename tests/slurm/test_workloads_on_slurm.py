"""A workload on a real Slurm: its warning that time is nearly up is a checkpoint, and the next start goes on."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from cluster import Cluster
from project_copy import copy_project
from scales import GPU_SITE, MEASURE, prepare, scale_job
from small_datasets import write_digits

pytestmark = pytest.mark.slurm


def test_a_warning_of_slurm_is_a_checkpoint_and_the_next_start_goes_on(
    cluster_without_accounting: Cluster, tmp_path: Path
) -> None:
    """As with ``slurm.extra: ["--signal=USR1@120"]``: Slurm signals all processes of the step, torchrun as well."""
    cluster, checkout = cluster_without_accounting, copy_project(tmp_path)
    args = ["--data-dir", str(write_digits(tmp_path / "digits", train=90)), "--batch-size", "{batch_per_gpu}"]
    args += ["--epochs", 1_000_000, "--checkpoint-dir", "{run_dir}/checkpoint", "--resume"]
    workload = {"script": "workflow/workloads/mnist.py", "args": args, "batch_per_gpu": 8}
    epoch_steps = -(-90 // 2 // 8)
    job = ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=4", "--mem=8000", "--gres=gpu:2", "--time=5"]
    run = checkout.results / "runs/default/weak/1x2/r1"
    command = shlex.join(scale_job("1x2"))

    prepare(checkout, "", "1x2", GPU_SITE, measure={**MEASURE, "max_steps": None}, workload=workload)
    first = cluster.sbatch(command, *job, cwd=tmp_path)
    cluster.await_true((run / "progress.json").exists, "slurmctld", "the second step", timeout_s=180)
    cluster.run(["scancel", "--signal=USR1", str(first)])
    assert cluster.await_state(first, timeout_s=180) == "COMPLETED"  # every run has left a record
    failure = checkout.record("default/weak/1x2/r1")["failure"]
    assert failure["verdict"] == "stopped by a signal, saved its state", failure
    (steps,) = re.findall(r"^rank 0, 1: exit code 75 after (\d+) steps", failure["why"])
    saved = torch.load(run / "checkpoint/checkpoint.pt", weights_only=True)
    assert saved["epoch"] * epoch_steps + -(-saved["samples_done"] // 8) == int(steps)  # an epoch's last batch is of 5

    prepare(checkout, "", "1x2", GPU_SITE, measure={**MEASURE, "max_steps": 2 * epoch_steps}, workload=workload)
    second = cluster.sbatch(command, *job, cwd=tmp_path)
    assert cluster.await_state(second, timeout_s=180) == "COMPLETED"
    record = checkout.record("default/weak/1x2/r1")
    assert record["status"] == "ok", record["failure"]
    assert record["fingerprint"]["goes_on"]  # with fewer steps than a repeat that was not interrupted
    log = (run / "train.log").read_text()
    assert f"checkpoint.pt: {saved['epoch']} epochs are done" in log
    assert re.findall(r"^epoch +(\d+) ", log, re.MULTILINE)[0] == str(saved["epoch"] + 1)
