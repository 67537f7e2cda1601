"""What torch tells of this rank: its place, device and precision; and the GPU's own times.

The parameters at the end: their number, and a checksum that is the same on ranks with equal parameters.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import socket
import sys
import time
import warnings
import weakref
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakTensorKeyDictionary

from ddp_ladder_instrument import host
from ddp_ladder_instrument.log import NO_MARK

HARVEST_PER_MARK = 2
"""More than one, so that the queue shrinks again after the host has run ahead of the device."""

Named = list[tuple[str, torch.Tensor]]

CAN_BE_INFINITE = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
FSDP_SHARDS = WeakTensorKeyDictionary()
"""Parameters that FullyShardedDataParallel shards, as keys; the tensors themselves do not show it."""
NAMED = 5
MOST_TENSORS = 4096
SHORT = 12
"""Hexadecimal digits of a tensor's digest: enough to name the tensors that differ, not to prove equality."""


PRODUCTS = {"tf32": "high", "bf16": "medium"}
OTHERS = {"tf32": "TF32", "bf16": "bfloat16"}


def float32_products(on_cuda: bool) -> str:
    """Return ``highest`` for true float32; ``high`` and ``medium`` allow TF32 or bfloat16 in matrix products.

    From torch 2.9 on, the settings of each operator tell it: the older ones raise once a script has set a new one.
    """
    backends = torch.backends
    products = _fp32_precision(backends.cuda if on_cuda else backends.mkldnn, "matmul")
    if products is not None:
        others = backends.cudnn if on_cuda else backends.mkldnn
        convolutions, recurrent = (
            OTHERS.get(str(_fp32_precision(others, each)), "float32") for each in ("conv", "rnn")
        )
        words = PRODUCTS.get(products, "highest")
        words += f", {convolutions} convolutions" if convolutions != "float32" else ""
        return words + (f", {recurrent} recurrent layers" if recurrent != convolutions else "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        precision: str = torch.get_float32_matmul_precision()
        if on_cuda and torch.backends.cudnn.allow_tf32:
            precision += ", TF32 convolutions"
    return precision


def _fp32_precision(backend: Any, operator: str) -> str | None:
    """Return ``ieee``, ``tf32``, ``bf16``, or ``none`` where nothing is set; None if this torch has no such setting."""
    precision = getattr(getattr(backend, operator, None), "fp32_precision", None)
    return precision if isinstance(precision, str) else None


def has_tf32() -> bool:
    """Return True if the current GPU has TF32: NVIDIA's from Ampere on."""
    return torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)


def compiled_graphs() -> int:
    """Return the number of graphs that torch.compile made in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0


def optimizer_name(optimizer: torch.optim.Optimizer) -> str:
    """Return ``AdamW``, or ``AdamW (fused)`` if an implementation was chosen."""
    chosen = [name for name in ("fused", "foreach", "capturable") if optimizer.defaults.get(name)]
    name = type(optimizer).__name__
    return f"{name} ({', '.join(chosen)})" if chosen else name


def versions(on_cuda: bool, read: Callable[[str, Callable[[], Any]], Any]) -> dict[str, Any]:
    """Return the versions of torch, CUDA, NCCL and cuDNN, which is not loaded without CUDA, and torch's threads."""
    nccl = read("nccl", lambda: ".".join(map(str, torch.cuda.nccl.version()))) if on_cuda else None
    return {
        "torch": str(torch.__version__),
        "cuda": built_for() if on_cuda else None,
        "nccl": nccl,
        "cudnn": read("cudnn", torch.backends.cudnn.version) if on_cuda else None,
        "threads": torch.get_num_threads(),
    }


def built_for() -> str | None:
    """Return the version of CUDA that torch is built for, such as ``12.8``, or ``ROCm 6.2``; None without either."""
    return torch.version.cuda or (f"ROCm {torch.version.hip}" if torch.version.hip else None)


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
        "built_for": built_for(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "why": why or "",
    }


class RankFacts:
    """Rank, local rank, world size and backend.

    They come from torch.distributed once there has been a group, from the environment before.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.rank, self.local_rank, self.size = host.place(environment)
        self._backends: str | None = None
        self._classes: dict[str, str | None] = {}

    def observe(self) -> None:
        """Update from torch.distributed, if a process group exists."""
        if not has_group():
            return
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._backends = str(dist.get_backend_config())
        self._classes = {kind: _backend_class(kind) for kind in ("cpu", "cuda")}

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
        """Set a value for the other ranks."""
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


class CudaMarks:
    """Events on the device's current stream, numbered in the order in which they were recorded.

    The first one is waited for, once: it pairs the device's clock with the host's. Of each other, the time since the
    one before it is read when the device has passed it; then it is used again. unreadable: those that could not be.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.unreadable = 0
        self._spare: list[torch.cuda.Event] = []
        self._open: deque[torch.cuda.Event] = deque()
        self._before: Any = None  # the last event that was read
        self._passed_s = array("d")  # when the device passed each mark that was read, by the host's clock

    def add(self) -> int:
        """Record an event now, and return its number; NO_MARK while a CUDA graph is being captured."""
        if torch.cuda.is_current_stream_capturing():
            return NO_MARK
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        if self._before is None:
            event.synchronize()
            self._before = event
            self._passed_s.append(time.perf_counter())
            return 0
        self._open.append(event)
        self._harvest(HARVEST_PER_MARK)
        return len(self._passed_s) + len(self._open) - 1

    def _harvest(self, at_most: int) -> None:
        """Read the oldest events that the device has passed."""
        while at_most and self._open and self._open[0].query():
            event, passed_s = self._open.popleft(), self._passed_s[-1]
            try:
                # Not always later: a prefetcher may have marked a stream of its own, which is behind the training's.
                passed_s += self._before.elapsed_time(event) / 1000.0
                event, self._before = self._before, event
            except RuntimeError:  # such as events of two devices: a step of the training must not fail for its time
                self.unreadable += 1
            self._passed_s.append(passed_s)
            self._spare.append(event)
            at_most -= 1

    @property
    def passed(self) -> int:
        """Return how many marks the device has passed; another thread than the one that trains may ask."""
        waiting = [*self._open]
        first, last = 0, len(waiting)
        while first < last:
            middle = (first + last) // 2
            first, last = (middle + 1, last) if waiting[middle].query() else (first, middle)
        return len(self._passed_s) + first

    def finish(self, wait: bool) -> int:
        """Read the remaining marks, after a synchronisation if ``wait``; return how many are left unread."""
        if wait:
            torch.cuda.synchronize(self.device)
        self._harvest(len(self._open))
        return len(self._open)

    def passed_s(self) -> Iterator[tuple[int, float]]:
        """Yield the number of each mark that was read, and when the device passed it, by the host's clock."""
        return enumerate(self._passed_s)


def is_idle(device: torch.device) -> bool:
    """Return True if the device's current stream has done all its work, a second from now at the latest."""
    until_s = time.perf_counter() + 1.0
    stream = torch.cuda.current_stream(device)
    while not (idle := stream.query()) and time.perf_counter() < until_s:
        time.sleep(0.01)
    return idle


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


def summary(named: Sequence[tuple[str, torch.Tensor]]) -> dict[str, Any]:
    """Return the record's ``parameters``; ``count`` is in elements."""
    digests = [_digest(name, tensor) for name, tensor in named]
    bad = [name for name, tensor in named if not _is_finite(tensor)]
    return {
        "count": sum(tensor.numel() for _, tensor in named),
        "sharded": any(is_sharded(tensor) for _, tensor in named),
        "checksum": f"sha256:{hashlib.sha256(b''.join(digests)).hexdigest()}",
        "not_finite": {"count": len(bad), "names": bad[:NAMED]},
        "tensors": [[named[k][0], digests[k].hex()[:SHORT]] for k in range(min(len(named), MOST_TENSORS))],
    }


def is_sharded(tensor: torch.Tensor) -> bool:
    """Return True if this rank holds only a part of it: a sharded DTensor, or a parameter that FSDP1 flattened."""
    places = getattr(tensor, "placements", ())
    return tensor in FSDP_SHARDS or any(type(place).__name__ != "Replicate" for place in places)


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
