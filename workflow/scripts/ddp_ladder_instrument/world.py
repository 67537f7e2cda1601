"""The rank, world size, backend and device of this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from ddp_ladder_instrument import host


class RankFacts:
    """Rank, local rank, world size and backend.

    They come from torch.distributed once there has been a group, from the environment before.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.rank = int(environment.get("RANK") or 0)
        self.local_rank = int(environment.get("LOCAL_RANK") or 0)
        self.size = int(environment.get("WORLD_SIZE") or 1)
        self._backends: str | None = None

    def observe(self) -> None:
        """Update from torch.distributed, if a process group exists."""
        if not has_group():
            return
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._backends = str(dist.get_backend_config())

    def backend(self, device_kind: str) -> str | None:
        """Return the backend for tensors of this device kind; None if there never was a group."""
        if self._backends is None:
            return None
        pairs = [item.partition(":") for item in self._backends.split(",")]
        by_kind = {kind: name for kind, _, name in pairs}
        return by_kind.get(device_kind) or pairs[0][2] or pairs[0][0]


def has_group() -> bool:
    """Return True if a default process group exists."""
    return dist.is_available() and dist.is_initialized()


def collective_calls() -> int | None:
    """Return the number of collective calls that this rank has begun in the default group; None if torch hides it."""
    if not has_group():
        return None
    try:
        group: Any = dist.distributed_c10d._get_default_group()
        return int(group._get_sequence_number_for_group())
    except (AttributeError, RuntimeError, NotImplementedError):
        return None


class GroupStore:
    """The default group's store as a ``stop.DecisionStore``. Raises RuntimeError if the store is gone."""

    def __init__(self) -> None:
        from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

        self.rank = dist.get_rank()
        self._store = PrefixStore("ddp_ladder", _get_default_store())

    def get(self, key: str) -> str:
        """Wait for the key and return its value."""
        return bytes(self._store.get(key)).decode()

    def set(self, key: str, value: str) -> None:
        """Set a value for the other ranks."""
        self._store.set(key, value)

    def leave_together(self, key: str) -> None:
        """Return at once, but on rank 0 only when every other rank has called this."""
        if self.rank:
            self._store.set(f"{key}/left/{self.rank}", "")
        else:
            self._store.wait([f"{key}/left/{other}" for other in range(1, dist.get_world_size())])


def find_store() -> GroupStore | None:
    """Return the store of the default group; None if this process is the only rank."""
    return GroupStore() if has_group() and dist.get_world_size() > 1 else None


def describe(device: torch.device | None) -> dict[str, Any]:
    """Return the record's ``device``."""
    if device is None or device.type != "cuda":
        return {"kind": "cpu", "index": None, "name": host.cpu_model(), "id": f"cpu:{os.getpid()}"}
    index = device.index if device.index is not None else torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    # Without a UUID, the index among the visible devices still distinguishes two ranks on a host.
    fallback = f"{socket.gethostname()}:{visible}:{index}"
    return {
        "kind": "cuda",
        "index": index,
        "name": properties.name,
        "id": str(uuid) if uuid is not None else fallback,
    }
