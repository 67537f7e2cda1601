"""Which rank this is, in which world, on which device."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from ddp_ladder_instrument import host


class World:
    """Rank, local rank, world size and backend.

    From torch.distributed once a group was seen there, from the environment until then.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.rank = int(environment.get("RANK") or 0)
        self.local_rank = int(environment.get("LOCAL_RANK") or 0)
        self.size = int(environment.get("WORLD_SIZE") or 1)
        self._backends: str | None = None

    def observe(self) -> None:
        """Take over what torch.distributed says when a process group exists."""
        if not has_group():
            return
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._backends = str(dist.get_backend_config())

    def backend(self, device_kind: str) -> str | None:
        """The backend that serves tensors of this kind; None when there never was a group."""
        if self._backends is None:
            return None
        pairs = [item.partition(":") for item in self._backends.split(",")]
        by_kind = {kind: name for kind, _, name in pairs}
        return by_kind.get(device_kind) or pairs[0][2] or pairs[0][0]


def has_group() -> bool:
    """Whether a default process group exists."""
    return dist.is_available() and dist.is_initialized()


class StoreBoard:
    """The default group's store as a notice board (stop.Board); RuntimeError when gone."""

    def __init__(self) -> None:
        from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

        self.rank = dist.get_rank()
        self._store = PrefixStore("ddp_ladder", _get_default_store())

    def get(self, key: str) -> str:
        """Wait for the key and return its value."""
        return bytes(self._store.get(key)).decode()

    def set(self, key: str, value: str) -> None:
        """Leave a value for the other ranks."""
        self._store.set(key, value)

    def leave_together(self, key: str) -> None:
        """Return on rank 0 when every other rank has called this, on the others at once."""
        if self.rank:
            self._store.set(f"{key}/left/{self.rank}", "")
        else:
            self._store.wait([f"{key}/left/{other}" for other in range(1, dist.get_world_size())])


def find_board() -> StoreBoard | None:
    """The board to agree on; None when this process is alone."""
    return StoreBoard() if has_group() and dist.get_world_size() > 1 else None


def describe(device: torch.device | None) -> dict[str, Any]:
    """The record's ``device``."""
    if device is None or device.type != "cuda":
        return {"kind": "cpu", "index": None, "name": host.cpu_model(), "id": f"cpu:{os.getpid()}"}
    index = device.index if device.index is not None else torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    # Without a uuid the place among the visible devices still tells two ranks of a host apart.
    fallback = f"{socket.gethostname()}:{visible}:{index}"
    return {
        "kind": "cuda",
        "index": index,
        "name": properties.name,
        "id": str(uuid) if uuid is not None else fallback,
    }
