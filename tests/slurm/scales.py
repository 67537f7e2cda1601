"""Run one scale in an allocation, without a whole ladder: its plan, and the command of its job."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from cluster import Cluster
from project_copy import NO_TORCH, ONE_STAGE, Checkout

# Writes a rank's environment and CPUs to a file beside its record.
WITNESS = """
import atexit, json, os
seen = dict(os.environ, cpus=sorted(os.sched_getaffinity(0)))
def write():
    with open(os.path.join(os.path.dirname(seen["DDP_LADDER_RUN"]), f"witness{seen['RANK']}.json"), "w") as file:
        json.dump(seen, file)
atexit.register(write)
"""
# Proves with an all-reduce that all ranks are connected. There is no training: an optimizer takes seconds to import.
MEET = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
seen["sum"] = total.item()
dist.destroy_process_group()
"""
MEETING = WITNESS + MEET + NO_TORCH
# What others have met as need not meet again: torch takes seconds to start.
MEETING_OR_NOT = f"import sys\n{WITNESS}\nif 'no meeting' not in sys.argv:\n    exec({MEET!r})\n{NO_TORCH}"

GPU_SITE: Mapping[str, Any] = {
    "site": "test",
    "node": {"gpus": 2, "device": "cpu", "gres": "gpu", "cpus": 4, "memory_mb": 8000},
    # The GPUs that Slurm shows, before the site's device, cpu, hides them.
    "software": {"setup": "export SEEN_GPUS=$CUDA_VISIBLE_DEVICES"},
}


MEASURE: Mapping[str, Any] = {"warmup_steps": 1, "min_steps": 2, "max_steps": 6, "plain_baseline": False}


AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # as the tests on Slurm run


def prepare(
    checkout: Checkout,
    script: str,
    scale: str,
    site: Mapping[str, Any],
    measure: Mapping[str, Any] = MEASURE,
    **config: Any,
) -> None:
    """Write config, site and plan of a ladder with only this scale."""
    nodes, gpus = map(int, scale.split("x"))
    stage = "stage3" if nodes > 1 else "stage2" if gpus > 1 else "stage1"
    stages = {**ONE_STAGE, stage: {"scales": [scale], "runtime": 5}}
    checkout.set_up(script, site, stages=stages, measure=dict(measure), **config)
    checkout.plan(scale)


def salloc(cluster: Cluster, checkout: Checkout, options: list[str], argv: list[str], **env: str) -> str:
    """Run a command in an allocation, on the login node as salloc does; return its output."""
    done = cluster.run(["salloc", "--time=5", *options, *argv], cwd=checkout.path, env=env, timeout_s=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def scale_job(scale: str) -> list[str]:
    return [sys.executable, "workflow/scripts/run_scale.py", "--plan", "results/plan.json", "--scale", scale]


def witnesses(checkout: Checkout, run: str) -> list[dict[str, Any]]:
    """Return the environment and CPUs of each rank of a run, in rank order."""
    found = (checkout.results / "runs" / run).glob("witness*.json")
    return sorted((json.loads(file.read_text()) for file in found), key=lambda seen: int(seen["RANK"]))
