"""The parameters at the end: how many, and a checksum that equal ranks share."""

from __future__ import annotations

import ctypes
import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

Named = list[tuple[str, torch.Tensor]]


def of_module(module: torch.nn.Module) -> Named:
    """Parameters by their name in the module."""
    return list(module.named_parameters())


def of_optimizer(optimizer: torch.optim.Optimizer) -> Named:
    """Parameters by their place in the optimizer, for models that DDP does not wrap."""
    tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    return [(str(index), tensor) for index, tensor in enumerate(tensors)]


def main_dtype(named: Sequence[tuple[str, torch.Tensor]]) -> str:
    """The dtype of most elements: ``float32``."""
    elements: Counter[str] = Counter()
    for _, tensor in named:
        elements[dtype_name(tensor.dtype)] += tensor.numel()
    return elements.most_common(1)[0][0]


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for torch.float32."""
    return str(dtype).partition(".")[2]


def summary(named: Sequence[tuple[str, torch.Tensor]]) -> dict[str, Any]:
    """The record's ``parameters``; count in elements."""
    return {
        "count": sum(tensor.numel() for _, tensor in named),
        "bytes": sum(tensor.numel() * tensor.element_size() for _, tensor in named),
        "checksum": f"sha256:{checksum(named)}",
    }


def checksum(named: Sequence[tuple[str, torch.Tensor]]) -> str:
    """Digest over names, dtypes, shapes and raw bytes, in order."""
    digest = hashlib.sha256()
    for name, tensor in named:
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        plain = tensor.detach().cpu().contiguous()
        size = plain.numel() * plain.element_size()
        if size:
            # By address: numpy may be missing, and knows no bfloat16.
            digest.update((ctypes.c_char * size).from_address(plain.data_ptr()))
    return digest.hexdigest()
