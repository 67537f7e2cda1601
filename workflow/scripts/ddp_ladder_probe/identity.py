"""What this rank is: its device and its versions, and whether all ranks belong to this job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

MOST_NAMED = 4


def device_of(kind: str, local_rank: int) -> torch.device:
    """Return this rank's device, and make it the current one. Raises RuntimeError, as a training would."""
    if kind != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def describe(device: torch.device) -> dict[str, Any]:
    """Return the identity of a device, and the versions that all ranks must share."""
    described: dict[str, Any] = {
        "kind": device.type,
        "name": None,
        "id": f"cpu:{os.getpid()}",
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        described["name"] = properties.name
        described["id"] = str(getattr(properties, "uuid", f"cuda:{device.index}"))
    return described


def versions(kind: str) -> dict[str, Any]:
    """Return the versions of torch, CUDA and NCCL; the last is null without CUDA."""
    nccl = None
    if kind == "cuda" and torch.distributed.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {"torch": str(torch.__version__), "cuda": torch.version.cuda or torch.version.hip, "nccl": nccl}


def card(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a rank shows to the others."""
    return {
        "token": content["job"]["run_id"],
        "job": content["job"]["id"],
        "spec_hash": content["spec_hash"],
        "rank": content["rank"],
        "host": content["host"],
        "pid": content["pid"],
    }


def compare(own: Mapping[str, Any], cards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what this rank saw of all ranks: how many, and the first of another job or in another place."""
    foreign = [each for each in cards if (each["token"], each["spec_hash"]) != (own["token"], own["spec_hash"])]
    misplaced = [each for place, each in enumerate(cards) if each["rank"] != place]
    return {
        "count": len(cards),
        "foreign": [_named(each) for each in foreign[:MOST_NAMED]],
        "misplaced": [_named(each) for each in misplaced[:MOST_NAMED]],
    }


def _named(each: Mapping[str, Any]) -> str:
    return f"rank {each['rank']} on {each['host']} (pid {each['pid']}) of job {each['job']}"
