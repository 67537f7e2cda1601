"""What torch tells of this rank: its place and its backend.

The parameters at the end: their number, and a checksum that is the same on ranks with equal parameters.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakTensorKeyDictionary

from ddp_ladder_instrument import accelerator, host, slow_settings

Named = list[tuple[str, torch.Tensor]]

CAN_BE_INFINITE = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
FSDP_SHARDS = WeakTensorKeyDictionary()
"""Parameters that FullyShardedDataParallel shards, as keys; the tensors themselves do not show it."""
NAMED = 5
MOST_TENSORS = 4096
SHORT = 8
"""Hexadecimal digits of a tensor's digest: enough to name the tensors that differ, not to prove equality."""


def compiled_graphs() -> int:
    """Return the number of graphs that torch.compile made in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0


def slow_modes() -> Iterator[str]:
    """Yield the modes of torch that are on and slow down every step."""
    if torch.is_anomaly_enabled():
        yield slow_settings.ANOMALY
    if torch.are_deterministic_algorithms_enabled():
        yield slow_settings.DETERMINISTIC


def optimizer_name(optimizer: torch.optim.Optimizer) -> str:
    """Return ``AdamW``, or ``AdamW (fused)`` if an implementation was chosen."""
    chosen = [name for name in ("fused", "foreach", "capturable") if optimizer.defaults.get(name)]
    name = type(optimizer).__name__
    return f"{name} ({', '.join(chosen)})" if chosen else name


class RankFacts:
    """Rank, local rank, world size and backend.

    They come from torch.distributed once there has been a group, from the environment before.
    """

    def __init__(self) -> None:
        self.rank, self.local_rank, self.size = host.place()
        self._backends: str | None = None
        self._classes: dict[str, str | None] = {}

    def observe(self) -> None:
        """Update from torch.distributed, if a process group exists."""
        if not has_group():
            return
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._backends = str(dist.get_backend_config())
        self._classes = {kind: _backend_class(kind) for kind in accelerator.KINDS}

    def backend(self, device_kind: str) -> str | None:
        """Return the backend for tensors of this device kind; None if there never was a group."""
        if self._backends is None:
            return None
        pairs = [item.partition(":") for item in self._backends.split(",")]
        by_kind = {kind: name for kind, _, name in pairs}
        return by_kind.get(device_kind) or pairs[0][2] or pairs[0][0]

    def backend_class(self, device_kind: str) -> str | None:
        """Return the class behind that name, which may change between releases; None if it is not known."""
        return self._classes.get(device_kind)


def _backend_class(device_kind: str) -> str | None:
    try:
        name = type(dist.distributed_c10d._get_default_group()._get_backend(torch.device(device_kind))).__name__
    except Exception:  # the group has no backend for this kind, or torch has no such method
        return None
    return None if name == "Backend" else name  # a class that torch does not show to Python


def has_group() -> bool:
    """Return True if a default process group exists."""
    return dist.is_available() and dist.is_initialized()


class GroupStore:
    """The default group's store, in which rank 0 writes its decisions. Raises RuntimeError if the store is gone."""

    def __init__(self) -> None:
        from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._store = PrefixStore("ddp_ladder", _get_default_store())

    def get(self, key: str, longest_s: float | None = None) -> str:
        """Wait for the key, as long as the group does or for so many seconds, and return its value."""
        if longest_s is not None:
            self._store.wait([key], timedelta(seconds=longest_s))
        return bytes(self._store.get(key)).decode()

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def leave_together(self, key: str) -> None:
        """Return at once, but on rank 0 only when every other rank has called this."""
        if self.rank:
            self._store.set(f"{key}/left/{self.rank}", "")
        else:
            self._store.wait([f"{key}/left/{other}" for other in range(1, self.size)])


def find_store() -> GroupStore | None:
    """Return the store of the default group; None if this process is the only rank."""
    return GroupStore() if has_group() and dist.get_world_size() > 1 else None


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


def summary(named: Sequence[tuple[str, torch.Tensor]], names_each: bool) -> dict[str, Any]:
    """Return the record's ``parameters``; ``count`` is in elements. names_each: with their names, as of one rank."""
    digests = [_digest(name, tensor) for name, tensor in named]
    bad = [name for name, tensor in named if not _is_finite(tensor)]
    return {
        "count": sum(tensor.numel() for _, tensor in named),
        "sharded": any(is_sharded(tensor) for _, tensor in named),
        "checksum": f"sha256:{hashlib.sha256(b''.join(digests)).hexdigest()}",
        "not_finite": {"count": len(bad), "names": bad[:NAMED]},
        "names": [name for name, _ in named[:MOST_TENSORS]] if names_each else [],
        "digests": "".join(digest.hex()[:SHORT] for digest in digests[:MOST_TENSORS]),
    }


def is_sharded(tensor: torch.Tensor) -> bool:
    """Return True if this rank holds only a part of it: a sharded DTensor, or a parameter that FSDP1 flattened."""
    places = getattr(tensor, "placements", ())
    return tensor in FSDP_SHARDS or any(type(place).__name__ != "Replicate" for place in places)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of it."""
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part.detach()


def _digest(name: str, tensor: torch.Tensor) -> bytes:
    """Return a digest of name, dtype, shape and raw bytes; of a sharded tensor, of this rank's part."""
    digest = hashlib.sha256(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
    plain = local(tensor).cpu().contiguous()
    size = plain.numel() * plain.element_size()
    if size:
        # Read by address: numpy may be missing, and has no bfloat16.
        digest.update((ctypes.c_char * size).from_address(plain.data_ptr()))
    return digest.digest()


def _is_finite(tensor: torch.Tensor) -> bool:
    return tensor.dtype not in CAN_BE_INFINITE or bool(torch.isfinite(local(tensor)).all())
