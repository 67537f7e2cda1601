"""The parameters at the end: how many, and a checksum that equal ranks share."""

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
"""Parameters that FullyShardedDataParallel divides, as keys; nothing of them shows it."""
NAMED = 5
MOST_TENSORS = 4096
SHORT = 12
"""Hexadecimal digits of a tensor's digest: to say which tensors differ, not to prove that none does."""


class Kept:
    """The parameters that were trained, kept so that they are there at the end.

    Those of modules that DDP wraps, by their names; of what an optimizer steps beside, by place.
    What belongs to a module or optimizer that is gone is given up when the next one comes.
    """

    def __init__(self) -> None:
        self._groups: list[tuple[Callable[[], Any], Named]] = []

    def add_module(self, ddp: DistributedDataParallel) -> Named:
        """Keep those of a wrapped module, in place of what optimizers told of them."""
        named = list(ddp.module.named_parameters())
        self._give_up()
        return self._add(ddp, named)

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> Named:
        """Keep those that no module named."""
        self._give_up()
        known = {id(tensor) for _, tensor in self.named()}
        tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        fresh = [(str(index), tensor) for index, tensor in enumerate(tensors) if id(tensor) not in known]
        return self._add(optimizer, fresh)

    def named(self) -> Named:
        """All, in the order in which they came."""
        return [item for _, named in self._groups for item in named]

    def _add(self, owner: Any, named: Named) -> Named:
        if named:
            self._groups.append((weakref.ref(owner), named))
        return named

    def _give_up(self) -> None:
        self._groups = [(owner, named) for owner, named in self._groups if owner() is not None]


def dtypes(named: Sequence[tuple[str, torch.Tensor]]) -> list[str]:
    """All of them, by name."""
    return sorted({dtype_name(tensor.dtype) for _, tensor in named})


def main_dtype(named: Sequence[tuple[str, torch.Tensor]]) -> str:
    """The dtype of most elements: ``float32``."""
    elements: Counter[str] = Counter()
    for _, tensor in named:
        elements[dtype_name(tensor.dtype)] += tensor.numel()
    return elements.most_common(1)[0][0]


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for torch.float32."""
    return str(dtype).partition(".")[2]


def summary(named: Sequence[tuple[str, torch.Tensor]], world_size: int) -> dict[str, Any]:
    """The record's ``parameters``; count in elements."""
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
    """Whether this rank holds a part of it only: a DTensor, or what FSDP of old flattened."""
    return tensor in FSDP_SHARDS or any(_is_part(place) for place in getattr(tensor, "placements", ()))


def is_replicated(tensor: torch.Tensor, world_size: int) -> bool:
    """Whether it says itself that every rank of the world holds the same: a DTensor."""
    places = getattr(tensor, "placements", ())
    if not places or any(_is_part(place) for place in places):
        return False
    return bool(tensor.device_mesh.size() == world_size)  # type: ignore[attr-defined]


def _is_part(place: object) -> bool:
    return type(place).__name__ != "Replicate"


def checksum(named: Sequence[tuple[str, torch.Tensor]]) -> str:
    """Digest over names, dtypes, shapes and raw bytes, in order."""
    return _overall([_digest(name, tensor) for name, tensor in named])


def _overall(digests: Sequence[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of it."""
    own: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return own.detach()


def _digest(name: str, tensor: torch.Tensor) -> bytes:
    """Over name, dtype, shape and raw bytes; of a sharded one, this rank's part."""
    digest = hashlib.sha256(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
    plain = _own(tensor).cpu().contiguous()
    size = plain.numel() * plain.element_size()
    if size:
        # By address: numpy may be missing, and knows no bfloat16.
        digest.update((ctypes.c_char * size).from_address(plain.data_ptr()))
    return digest.digest()


def _is_finite(tensor: torch.Tensor) -> bool:
    return tensor.dtype not in CAN_BE_INFINITE or bool(torch.isfinite(_own(tensor)).all())
