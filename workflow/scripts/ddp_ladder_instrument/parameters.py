"""The parameters at the end: their number, and a checksum that is the same on ranks with equal parameters."""

from __future__ import annotations

import ctypes
import hashlib
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakTensorKeyDictionary

Named = list[tuple[str, torch.Tensor]]

CAN_BE_INFINITE = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
FSDP_SHARDS = WeakTensorKeyDictionary()
"""Parameters that FullyShardedDataParallel shards, as keys; the tensors themselves do not show it."""
NAMED = 5
MOST_TENSORS = 4096
SHORT = 12
"""Hexadecimal digits of a tensor's digest: enough to name the tensors that differ, not to prove equality."""


class Kept:
    """The trained parameters, kept alive until the end.

    Parameters of modules that DDP wraps have their names; others that an optimizer steps have their index.
    Those of a deleted module or optimizer are dropped when the next one is added.
    """

    def __init__(self) -> None:
        self._groups: list[tuple[Callable[[], Any], Named]] = []

    def add_module(self, ddp: DistributedDataParallel) -> Named:
        """Keep a wrapped module's parameters by name."""
        named = list(ddp.module.named_parameters())
        self._give_up()
        return self._add(ddp, named)

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> Named:
        """Keep the optimizer's parameters that are not kept already."""
        self._give_up()
        known = {id(tensor) for _, tensor in self.named()}
        tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        fresh = [(str(index), tensor) for index, tensor in enumerate(tensors) if id(tensor) not in known]
        return self._add(optimizer, fresh)

    def named(self) -> Named:
        """Return all, in the order in which they were added."""
        return [item for _, named in self._groups for item in named]

    def _add(self, owner: Any, named: Named) -> Named:
        if named:
            self._groups.append((weakref.ref(owner), named))
        return named

    def _give_up(self) -> None:
        self._groups = [(owner, named) for owner, named in self._groups if owner() is not None]


def main_dtype(named: Sequence[tuple[str, torch.Tensor]]) -> str:
    """Return the dtype of most elements, such as ``float32``."""
    elements: Counter[str] = Counter()
    for _, tensor in named:
        elements[str(tensor.dtype).partition(".")[2]] += tensor.numel()
    return elements.most_common(1)[0][0]


def summary(named: Sequence[tuple[str, torch.Tensor]], world_size: int) -> dict[str, Any]:
    """Return the record's ``parameters``; ``count`` is in elements."""
    digests = [_digest(name, tensor) for name, tensor in named]
    bad = [name for name, tensor in named if not _is_finite(tensor)]
    return {
        "count": sum(tensor.numel() for _, tensor in named),
        "bytes": sum(tensor.numel() * tensor.element_size() for _, tensor in named),
        "sharded": any(is_sharded(tensor) for _, tensor in named),
        "checksum": f"sha256:{_overall(digests)}",
        "not_finite": {"count": len(bad), "names": bad[:NAMED]},
        "replicated": [k for k in range(min(len(named), MOST_TENSORS)) if is_replicated(named[k][1], world_size)],
        "tensors": [[named[k][0], digests[k].hex()[:SHORT]] for k in range(min(len(named), MOST_TENSORS))],
    }


def is_sharded(tensor: torch.Tensor) -> bool:
    """Return True if this rank holds only a part of it: a sharded DTensor, or a parameter that FSDP1 flattened."""
    return tensor in FSDP_SHARDS or any(_is_part(place) for place in getattr(tensor, "placements", ()))


def is_replicated(tensor: torch.Tensor, world_size: int) -> bool:
    """Return True if it is a DTensor that is replicated on every rank of the world."""
    places = getattr(tensor, "placements", ())
    if not places or any(_is_part(place) for place in places):
        return False
    return bool(tensor.device_mesh.size() == world_size)  # type: ignore[attr-defined]


def _is_part(place: object) -> bool:
    return type(place).__name__ != "Replicate"


def _overall(digests: Sequence[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of it."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach()


def _digest(name: str, tensor: torch.Tensor) -> bytes:
    """Return a digest of name, dtype, shape and raw bytes; of a sharded tensor, of this rank's part."""
    digest = hashlib.sha256(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
    plain = _local(tensor).cpu().contiguous()
    size = plain.numel() * plain.element_size()
    if size:
        # Read by address: numpy may be missing, and has no bfloat16.
        digest.update((ctypes.c_char * size).from_address(plain.data_ptr()))
    return digest.digest()


def _is_finite(tensor: torch.Tensor) -> bool:
    return tensor.dtype not in CAN_BE_INFINITE or bool(torch.isfinite(_local(tensor)).all())
