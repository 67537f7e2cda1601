"""The device of a rank: which one it is, and whether it computes."""

from __future__ import annotations

import os
from typing import Any

import torch

SIZE = 256  # rows and columns of the matrices: products of small whole numbers, exact in every precision


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
        "index": device.index,
        "name": None,
        "id": f"cpu:{os.getpid()}",
        "count": torch.cuda.device_count() if device.type == "cuda" else 0,
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


def multiplies(device: torch.device) -> bool:
    """Return True if a matrix product on the device is exactly that of whole numbers."""
    a = torch.arange(SIZE * SIZE).reshape(SIZE, SIZE) % 7
    b = torch.arange(SIZE * SIZE).reshape(SIZE, SIZE) % 5
    product = a.to(device, torch.float32) @ b.to(device, torch.float32)
    return bool(torch.equal(product.cpu().long(), a @ b))
