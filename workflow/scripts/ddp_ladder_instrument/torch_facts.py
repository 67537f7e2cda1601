"""What torch tells of this rank: its place and its backend.

The parameters at the end: their number, and a checksum that is the same on ranks with equal parameters. In a link of a
chain their state before the first step and at the end, by some of their values, and how far the optimizer is: it shows
whether the next link goes on where this one ended.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
MOST_VALUES = 256
MOST_GROUPS = 64
"""Parameter groups of which the learning rate is kept."""
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


class States:
    """What the steps of the optimizers show.

    named: the parameters of wrapped modules. is_capturing: a CUDA graph is being made, in which nothing may be read.
    on_first: called with the first state once it is complete, after the first step. had_backward: set by the observer.
    """

    def __init__(
        self,
        named: Callable[[], Named],
        is_capturing: Callable[[], bool],
        on_first: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._named, self._is_capturing, self._on_first = named, is_capturing, on_first
        self.had_backward = False
        self.first: dict[str, Any] | None = None
        self._tensors: list[Callable[[], torch.Tensor | None]] = []
        self._optimizers: list[_Optimizer] = []
        self._begun = self._over = False

    def before_step(self, optimizer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note the state before the first step, and after it what keeps it; do nothing from then on."""
        if self._over or self._is_capturing():
            return
        if not self._begun:
            # A step without gradients only makes an optimizer's state, into which a checkpoint is then loaded.
            self._begun = self.had_backward or any(map(callable, (*args[1:], *kwargs.values())))
            if self._begun or self.first is None:
                self._begin(optimizer)
        elif all(known.optimizer() is not optimizer for known in self._optimizers):
            self._optimizers.append(_Optimizer(optimizer))
        elif optimizer is self._optimizers[0].optimizer():
            self._over = True
            for known in self._optimizers:
                known.hold()
            self._complete_first(_steps(self._optimizers))
            self._on_first(self.first or {})

    def give_up(self) -> None:
        """Keep nothing of optimizers that are gone, as there is another one."""
        for known in self._optimizers:
            if known.optimizer() is None:
                known.forget()

    def _begin(self, optimizer: Any) -> None:
        known = [tensor for _, tensor in self._named()]
        ids = {id(tensor) for tensor in known}
        own = [tensor for group in optimizer.param_groups for tensor in group["params"] if id(tensor) not in ids]
        tensors = [tensor for tensor in (*known, *own) if tensor.requires_grad]
        self._tensors = [weakref.ref(tensor) for tensor in tensors]
        self._optimizers = [_Optimizer(optimizer)]
        self.first = self._state(tensors)

    def _complete_first(self, steps_now: int | None) -> None:
        """An optimizer has made no step if its state is empty, and none that can be told if it keeps none."""
        if self.first is not None and self.first["optimizer_steps"] is None and steps_now is not None:
            self.first["optimizer_steps"] = 0

    def last(self) -> dict[str, Any] | None:
        """Return the state now, at the end; None without a step."""
        if self.first is None:
            return None
        tensors = [tensor for tensor in (held() for held in self._tensors) if tensor is not None]
        state = self._state(tensors if len(tensors) == len(self._tensors) else [])
        self._complete_first(state["optimizer_steps"])
        return state

    def _state(self, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
        parts = [local(tensor) for tensor in tensors]
        groups = [group for optimizer in self._optimizers for group in optimizer.groups()]
        rates = [float(group["lr"]) for group in groups if group.get("lr") is not None]
        return {
            "optimizer_steps": _steps(self._optimizers),
            "lr": [rate for rate in rates[:MOST_GROUPS] if math.isfinite(rate)],
            "values": [value if math.isfinite(value) else None for value in _values(parts)],
            "count": sum(part.numel() for part in parts),
        }


class _Optimizer:
    """An optimizer, which may be gone at the end: its groups and its counts of steps then tell what it was."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = weakref.ref(optimizer)
        self._groups: Sequence[Mapping[str, Any]] = ()
        self._counts: list[Any] = []

    def hold(self) -> None:
        """Keep what is updated in place; not the rest of the state, which may be as large as the model."""
        self._counts = [count for count in self.counts() if isinstance(count, torch.Tensor)]
        self._groups = self.groups()

    def forget(self) -> None:
        self._counts, self._groups = [], ()

    def groups(self) -> Sequence[Mapping[str, Any]]:
        optimizer = self.optimizer()
        return self._groups if optimizer is None else optimizer.param_groups

    def counts(self) -> list[Any]:
        """Return the counts of steps of its parameters, or of its groups."""
        optimizer = self.optimizer()
        if optimizer is None:
            return self._counts
        held = [state for state in (*optimizer.state.values(), *optimizer.param_groups) if isinstance(state, Mapping)]
        return [state["step"] for state in held if state.get("step") is not None]


def _steps(optimizers: Sequence[_Optimizer]) -> int | None:
    """Return the most steps that a parameter has had; None if none is counted."""
    counts = [count for optimizer in optimizers for count in optimizer.counts()]
    found = [int(count) for count in counts if not isinstance(count, torch.Tensor)]
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for count in counts:
        if isinstance(count, torch.Tensor):
            plain = local(count).reshape(())
            by_device.setdefault(plain.device, []).append(plain.double())
    found += [int(torch.stack(each).max()) for each in by_device.values()]
    return max(found, default=None)


def _values(parts: Sequence[torch.Tensor]) -> list[float]:
    """Return some elements of each, evenly spaced; of more tensors than MOST_VALUES, of some of them."""
    parts = [part for part in parts if part.numel()]
    if len(parts) > MOST_VALUES:
        parts = [parts[k * len(parts) // MOST_VALUES] for k in range(MOST_VALUES)]
    alike: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for part in parts:
        some = part.reshape(-1)[:: -(-part.numel() // (MOST_VALUES // len(parts)))]
        alike.setdefault((some.device, some.dtype), []).append(some)
    # One copy to the host for each kind; some devices have no float64.
    gathered = [torch.cat(each).cpu() for each in alike.values()]
    return [
        float(value)
        for each in gathered
        for value in (torch.view_as_real(each).reshape(-1)[:MOST_VALUES] if each.is_complex() else each).double()
    ][:MOST_VALUES]
