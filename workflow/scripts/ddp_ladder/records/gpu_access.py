"""The reasons why torch sees no GPU on a node, and the driver that each CUDA version needs. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddp_ladder.node.launch import training_python
from ddp_ladder.records.case import Case
from ddp_ladder.records.raw_models import Gpu, GpusSeen, RankEnd
from ddp_ladder.records.record import Failure

LEAST_DRIVER = {13: "580.65.06", 12: "525.60.13", 11: "450.80.02"}
"""Oldest NVIDIA driver on Linux for every release of a major CUDA version ("CUDA minor version compatibility",
NVIDIA's CUDA Toolkit release notes)."""

VERDICT = "torch sees no GPU"
TOO_OLD = re.compile(r"driver on your system is too old|driver version is insufficient", re.IGNORECASE)


def least_driver(cuda: str) -> str | None:
    """Return the oldest driver for a torch built for this CUDA (``12.8``); None for an unknown CUDA."""
    major = cuda.partition(".")[0]
    return LEAST_DRIVER.get(int(major)) if major.isdigit() else None


def is_too_old(driver: str, cuda: str) -> bool:
    """Return True if a driver (``470.57.02``) is too old for a torch built for this CUDA."""
    least = least_driver(cuda)
    return least is not None and _numbers(driver) < _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def no_gpu(case: Case) -> Failure | None:
    """Return the failure of a CUDA run in which a rank saw no GPU; None if every rank saw one or did not report."""
    spec, raw = case.spec, case.raw
    without = [(end, end.gpus_seen) for end in case.ends if end.gpus_seen and end.gpus_seen.count == 0]
    if spec.device != "cuda" or not without:
        return None
    end, seen = without[0]
    agents = [agent for agent in raw.agents.values() if agent.host == end.host]
    python = next((training_python(agent.argv) for agent in agents if agent.argv), "the training Python")
    gpus = [gpu for agent in agents for gpu in agent.gpus]
    why, next_step = _cause(end, seen, python, gpus)
    return Failure(
        verdict=VERDICT,
        why=f"rank {end.rank}: {why}",
        next=f"{next_step}; then start snakemake again",
        rank=end.rank,
        node=end.host,
    )


def _cause(end: RankEnd, seen: GpusSeen, python: str, gpus: Sequence[Gpu]) -> tuple[str, str]:
    """Return the cause, and what to do. gpus: those that nvidia-smi showed to the agents of the rank's host."""
    torch = end.fingerprint.get("torch")
    built, error, visible = seen.built_for, seen.why, seen.visible
    if built is None:
        return (
            f"torch {torch} of {python} is built without CUDA",
            "install a torch with CUDA for that Python, or name another one in software.python of cluster.yaml",
        )
    driver = next((gpu.driver for gpu in gpus), None)
    if TOO_OLD.search(error) or (driver and is_too_old(driver, built)):
        least = least_driver(built)
        wants = f" (wants {least} or newer)" if least else ""
        which = f"driver {driver}" if driver else "driver"
        return (
            f"the NVIDIA {which} is too old for torch {torch}, which is built for CUDA {built}{wants}",
            f"install for {python} a torch that is built for an older CUDA (pytorch.org, previous versions)",
        )
    if visible in ("", "-1", "NoDevFiles") or not gpus:
        shown = f"CUDA_VISIBLE_DEVICES is {visible!r}" if visible is not None else "nvidia-smi shows no GPU there"
        return (
            f"no GPU in the job step: {shown}; torch says: {error}",
            "check node.gres and slurm.partition in cluster.yaml (`scontrol show node` names a node's gres), and that "
            "workload.env and software.setup leave CUDA_VISIBLE_DEVICES alone",
        )
    return (
        f"nvidia-smi shows {len(gpus)} x {gpus[0].name}, but torch {torch} says: {error}",
        f"try it on that node: srun --pty {python} -c 'import torch; torch.cuda.init()'; ask the site's support where "
        "another torch fails in the same way",
    )
