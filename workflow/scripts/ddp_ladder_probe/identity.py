"""What this rank is: its device and its versions."""

from __future__ import annotations

import os
from typing import Any

import torch


def device_of(kind: str, local_rank: int) -> torch.device:
    """Return this rank's device, and make it the current one. Raises RuntimeError, as a training would."""
    if kind != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def describe(device: torch.device) -> dict[str, Any]:
    """Return the identity of a device."""
    if device.type != "cuda":
        return {"kind": device.type, "name": None, "id": f"cpu:{os.getpid()}"}
    properties = torch.cuda.get_device_properties(device)
    uuid = str(getattr(properties, "uuid", f"cuda:{device.index}"))
    return {"kind": device.type, "name": properties.name, "id": uuid}


def versions(kind: str) -> dict[str, Any]:
    """Return the versions of torch, CUDA and NCCL, which all ranks must share; the last is null without CUDA."""
    nccl = None
    if kind == "cuda" and torch.distributed.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {"torch": str(torch.__version__), "cuda": torch.version.cuda or torch.version.hip, "nccl": nccl}
