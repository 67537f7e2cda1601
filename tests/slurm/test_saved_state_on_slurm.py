"""A script that saves its state on a real Slurm's warning that time is nearly up: the next start goes on."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from cluster import Cluster
from project_copy import copy_project
from scales import GPU_SITE, MEASURE, prepare, scale_job

pytestmark = pytest.mark.slurm

# A signal reaches one rank earlier than another: the ranks agree after each step.
SAVES = """
import signal, sys
from pathlib import Path
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

told = torch.zeros(1)
signal.signal(signal.SIGUSR1, lambda *_: told.fill_(1))
saved = Path(sys.argv[1])
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.ones(64, 4))
loader = DataLoader(data, 8, sampler=DistributedSampler(data))
done = int(saved.read_text()) if saved.exists() else 0
print("goes on after", done, "steps")
for epoch in range(1_000_000):
    loader.sampler.set_epoch(epoch)
    for (inputs,) in loader:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        done += 1
        all_told = told.clone()
        dist.all_reduce(all_told)
        if all_told.item():
            if dist.get_rank() == 0:
                saved.write_text(str(done))
            dist.barrier()
            sys.exit(75)
"""


def test_a_script_saves_on_a_warning_of_slurm_and_the_next_start_goes_on(
    cluster_without_accounting: Cluster, tmp_path: Path
) -> None:
    """As with ``slurm.extra: ["--signal=USR1@120"]``: Slurm signals all processes of the step, torchrun as well."""
    cluster, checkout = cluster_without_accounting, copy_project(tmp_path)
    workload = {"script": "loop.py", "args": ["{run_dir}/saved"], "batch_per_gpu": 8}
    job = ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=4", "--mem=8000", "--gres=gpu:2", "--time=5"]
    run = checkout.results / "runs/default/weak/1x2/r1"
    command = shlex.join(scale_job("1x2"))

    prepare(checkout, SAVES, "1x2", GPU_SITE, measure={**MEASURE, "max_steps": None}, workload=workload)
    first = cluster.sbatch(command, *job, cwd=tmp_path)
    cluster.await_true((run / "progress.json").exists, "slurmctld", "the second step", timeout_s=180)
    cluster.run(["scancel", "--signal=USR1", str(first)])
    assert cluster.await_state(first, timeout_s=180) == "COMPLETED"  # every run has left a record
    failure = checkout.record("default/weak/1x2/r1")["failure"]
    assert failure["verdict"] == "stopped by a signal, saved its state", failure
    (steps,) = re.findall(r"^ranks 0, 1: exit code 75 after (\d+) steps", failure["why"])
    assert (run / "saved").read_text() == steps

    prepare(checkout, SAVES, "1x2", GPU_SITE, measure={**MEASURE, "max_steps": 10}, workload=workload)
    second = cluster.sbatch(command, *job, cwd=tmp_path)
    assert cluster.await_state(second, timeout_s=180) == "COMPLETED"
    record = checkout.record("default/weak/1x2/r1")
    assert record["status"] == "ok", record["failure"]
    assert record["fingerprint"]["goes_on"]  # with fewer steps than a repeat that was not interrupted
    assert f"goes on after {steps} steps" in (run / "train.log").read_text()
