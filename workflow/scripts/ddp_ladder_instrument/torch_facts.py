"""Facts about torch's computation: precision of float32 products, compiled graphs, optimizer, cuDNN, GPUs."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import torch


def float32_products(on_cuda: bool) -> str:
    """Return ``highest`` for true float32; ``high`` and ``medium`` allow TF32 or bfloat16 in matrix products."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        precision: str = torch.get_float32_matmul_precision()
        if on_cuda and torch.backends.cudnn.allow_tf32:
            precision += ", TF32 convolutions"
    return precision


def compiled_graphs() -> int:
    """Return the number of graphs that torch.compile made in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0


def optimizer_name(optimizer: torch.optim.Optimizer) -> str:
    """Return ``AdamW``, or ``AdamW (fused)`` if an implementation was chosen."""
    chosen = [name for name in ("fused", "foreach", "capturable") if optimizer.defaults.get(name)]
    name = type(optimizer).__name__
    return f"{name} ({', '.join(chosen)})" if chosen else name


def cudnn(on_cuda: bool) -> Any:
    """Return the version number of cuDNN; None without CUDA, because the query would load cuDNN."""
    return torch.backends.cudnn.version() if on_cuda else None


def gpus_seen() -> dict[str, Any]:
    """Return how many GPUs torch sees and, if none, why. For a process that used none; loads nothing on a GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count, why = torch.cuda.device_count(), None
    if not count:
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:  # AssertionError: built without CUDA
            why = " ".join(str(error).split())
    return {
        "count": count,
        "built_for": torch.version.cuda,
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "why": why or "",
    }
