"""`snakemake eject`, and then nothing but sbatch."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from project_copy import Checkout, copy_project
from scales import AS_ROOT

pytestmark = pytest.mark.slurm

HOSTILE = """it's "$HOME" `x` $(y) \\ #1"""

# Before torch, so that a run that fails does so soon.
WITNESS = """
import glob, json, os, signal, socket, sys, time
job, rank = os.environ["SLURM_JOB_ID"], os.environ["RANK"]
with open(f"{job}.{rank}.part", "w") as file:
    json.dump({"host": socket.gethostname(), "argv": sys.argv[1:], "env": dict(os.environ)}, file)
os.rename(f"{job}.{rank}.part", f"{job}.{rank}.json")
if "broken" in sys.argv:
    while len(glob.glob(f"{job}.*.json")) < 4 and rank == "3":  # its end ends the others
        time.sleep(0.02)
    if rank == "3":
        sys.exit(3)
    signal.pause()
"""

# With torchrun only: test_launchers.py has a meeting with each launcher.
MEET = """
if os.environ["SLURM_NTASKS"] == os.environ["WORLD_SIZE"]:
    sys.exit()
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""

CONFIG = {
    "workload": {
        "script": "loop.py",
        "args": ["{batch_per_gpu}", HOSTILE.replace("{", "{{")],
        "batch_per_gpu": 16,
        "lr": None,
        "env": {"HOSTILE": HOSTILE},
    },
    "variants": {
        "default": {},
        "srun": {"launcher": "srun", "network": {"interface": "ib0"}},
        "broken": {"launcher": "srun", "args": ["broken"]},
    },
    "measure": {"warmup_steps": 1, "min_steps": 2, "max_steps": 3, "plain_baseline": False},
    "stages": {
        "stage1": {"scales": ["1x1"], "runtime": 4},
        "stage2": {"scales": ["1x2"], "runtime": 4},
        "stage3": {"scales": ["2x2"], "runtime": 4, "slurm": {"nodelist": "node[1-2]"}},
    },
}
SITE = {
    "site": "test",
    "slurm": {"partition": "gpu", "extra": ["--hint=nomultithread"]},
    # No GPU is used; that they are there to be seen is part of what is tested.
    "node": {"gpus": 2, "device": "cuda", "gres": "gpu", "cpus": 4, "memory_mb": 8000},
    "network": {"interface": {"node1": "ib0"}, "env": {"NCCL_DEBUG": "WARN"}},  # node2 is left out: auto
}


@dataclass(frozen=True)
class Submitted:
    """A job.sh that was submitted, at its end."""

    shown: dict[str, str]
    witnesses: list[dict[str, Any]]
    log: str


@pytest.fixture(scope="module")
def ejected(cluster_without_accounting: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout in a directory with an unusual name, in which nothing but `snakemake eject` was run."""
    path = tmp_path_factory.mktemp("project") / "it's #1 of 50%"
    path.mkdir()
    checkout = copy_project(path)
    checkout.set_up(WITNESS + MEET, SITE, **CONFIG)
    done = checkout.snakemake("eject")
    assert done.returncode == 0, done.stdout
    return checkout


def submit(cluster: Cluster, checkout: Checkout, run: str) -> Submitted:
    directory = checkout.results / "runs" / run
    shell = {"SBATCH_GPU_BIND": "single:1", **AS_ROOT}  # a default that would leave each process one GPU
    job = int(cluster.run(["sbatch", "--parsable", str(directory / "job.sh")], cwd=Path("/"), env=shell).stdout)
    cluster.await_state(job, timeout_s=200)
    shown = cluster.run(["scontrol", "--oneliner", "--details", "show", "job", str(job)]).stdout
    files = sorted(checkout.path.glob(f"{job}.*.json"))
    witnesses = [json.loads(file.read_text()) for file in files]
    log = (directory / f"job-{job}.log").read_text()
    return Submitted(dict(re.findall(r"(\S+?)=(\S*)", shown)), witnesses, log)


@pytest.mark.parametrize(("variant", "tasks", "cpus"), [("default", 2, 4), ("srun", 4, 2)])
def test_sbatch_reproduces_the_run(
    ejected: Checkout, cluster_without_accounting: Cluster, variant: str, tasks: int, cpus: int
) -> None:
    cluster = cluster_without_accounting
    job = submit(cluster, ejected, f"{variant}/weak/2x2/r1")
    assert (job.shown["JobState"], job.shown["ExitCode"]) == ("COMPLETED", "0:0"), job.log

    wanted = {"NumNodes": "2", "NumTasks": str(tasks), "CPUs/Task": str(cpus), "TresPerNode": "gres:gpu:2"}
    wanted |= {"MinMemoryNode": "8000M", "Partition": "gpu", "TimeLimit": "00:04:00", "Requeue": "0"}
    wanted |= {"NodeList": "node[1-2]", "ReqNodeList": "node[1-2]", "TRES": "cpu=8,mem=16000M,node=2,billing=8"}
    assert {key: job.shown[key] for key in wanted} == wanted
    assert job.shown["JOB_GRES"] == "gpu:4"

    assert len(job.witnesses) == 4
    for rank, seen in enumerate(job.witnesses):
        env = seen["env"]
        ranks = [env[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")]
        assert ranks == [str(rank), str(rank % 2), "4", "2", str(rank // 2)]
        assert seen["host"] == f"node{1 + rank // 2}"
        assert seen["argv"] == ["16", HOSTILE]
        assert env["PWD"] == str(ejected.path)
        assert (env["HOSTILE"], env["NCCL_DEBUG"], env["OMP_NUM_THREADS"]) == (HOSTILE, "WARN", "2")
        assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("ib0", "ib0")
        assert env["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert env["MASTER_ADDR"] == cluster.addresses["node1"]
        assert not [name for name in env if name.startswith(("DDP_LADDER", "SNAKEMAKE"))]


def test_a_script_that_fails_fails_the_job(ejected: Checkout, cluster_without_accounting: Cluster) -> None:
    """The other processes would never end by themselves."""
    job = submit(cluster_without_accounting, ejected, "broken/weak/2x2/r1")
    assert job.shown["JobState"] == "FAILED", job.log
    assert "task 3: Exited with exit code 3" in job.log
    assert len(job.witnesses) == 4
