"""The device of this rank as torch has it: the only module that says torch.cuda.

Another accelerator of torch (torch.xpu) is a kind in GPUS, and an answer to each question below.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import warnings
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ddp_ladder_instrument import host
from ddp_ladder_instrument.log import NO_MARK

GPUS = ("cuda",)
"""Kinds of torch.device that are GPUs."""
KINDS = ("cpu", *GPUS)
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
"""Variables that limit the GPUs that a process sees: of CUDA and ROCm, of ROCm alone."""
HARVEST_PER_MARK = 2
"""More than one, so that the queue shrinks again after the host has run ahead of the device."""


def is_gpu(device: torch.device | None) -> bool:
    """Return True if this device, if any, is a GPU."""
    return device is not None and device.type in GPUS


def take(kind: str, local_rank: int) -> torch.device:
    """Return this rank's device, which is the current one from now on."""
    if kind not in GPUS:
        return torch.device(kind)
    device = torch.device(kind, local_rank)
    torch.cuda.set_device(device)
    return device


def synchronize(device: torch.device | None) -> None:
    """Wait until a GPU has done its work."""
    if is_gpu(device):
        torch.cuda.synchronize(device)


def graphs() -> type:
    """Return the class of captured graphs, with its method ``replay``."""
    return torch.cuda.CUDAGraph


def is_capturing() -> bool:
    """Return True while a graph is being captured on the current stream."""
    return torch.cuda.is_current_stream_capturing()


def peak_memory_bytes(device: torch.device | None) -> int | None:
    """Return the most that torch's allocator has given out on a GPU; None for another device."""
    return torch.cuda.max_memory_allocated(device) if is_gpu(device) else None


def memory_limit_bytes(device: torch.device | None) -> int | None:
    """Return what torch's allocator has and can still get on a GPU: not what CUDA, NCCL or other processes hold."""
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) if is_gpu(device) else None


PRODUCTS = {"tf32": "high", "bf16": "medium"}
OTHERS = {"tf32": "TF32", "bf16": "bfloat16"}


def float32_products(on_gpu: bool) -> str:
    """Return ``highest`` for true float32; ``high`` and ``medium`` allow TF32 or bfloat16 in matrix products.

    From torch 2.9 on, the settings of each operator tell it: the older ones raise once a script has set a new one.
    """
    backends = torch.backends
    products = _fp32_precision(backends.cuda if on_gpu else backends.mkldnn, "matmul")
    if products is not None:
        others = backends.cudnn if on_gpu else backends.mkldnn
        convolutions, recurrent = (OTHERS.get(str(_fp32_precision(others, op)), "float32") for op in ("conv", "rnn"))
        words = PRODUCTS.get(products, "highest")
        words += f", {convolutions} convolutions" if convolutions != "float32" else ""
        return words + (f", {recurrent} recurrent layers" if recurrent != convolutions else "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        precision: str = torch.get_float32_matmul_precision()
        if on_gpu and torch.backends.cudnn.allow_tf32:
            precision += ", TF32 convolutions"
    return precision


def _fp32_precision(backend: Any, operator: str) -> str | None:
    """Return ``ieee``, ``tf32``, ``bf16``, or ``none`` where nothing is set; None if this torch has no such setting."""
    precision = getattr(getattr(backend, operator, None), "fp32_precision", None)
    return precision if isinstance(precision, str) else None


def has_tf32() -> bool:
    """Return True if the current GPU has TF32: NVIDIA's from Ampere on."""
    return torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)


def versions(on_gpu: bool, read: Callable[[str, Callable[[], Any]], Any]) -> dict[str, Any]:
    """Return the versions of torch, CUDA, NCCL and cuDNN, which is not loaded without CUDA, and torch's threads."""
    nccl = read("nccl", lambda: ".".join(map(str, torch.cuda.nccl.version()))) if on_gpu else None
    return {
        "torch": str(torch.__version__),
        "cuda": built_for() if on_gpu else None,
        "nccl": nccl,
        "cudnn": read("cudnn", torch.backends.cudnn.version) if on_gpu else None,
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
        "visible": visible(),
        "why": why or "",
    }


def visible() -> str | None:
    """Return the variables that limit the GPUs of this process, with their values; None if none is set."""
    return ", ".join(f"{name}={os.environ[name]!r}" for name in VISIBLE if name in os.environ) or None


def describe(device: torch.device | None) -> dict[str, Any]:
    """Return the record's ``device``."""
    if device is None or not is_gpu(device):
        return host.cpu()
    index = device.index if device.index is not None else torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    # Of a slice (MIG), the variable says which one. The UUID is that of its GPU in some versions of CUDA.
    named = os.environ.get(VISIBLE[0], "").partition(",")[0].strip()
    uuid = named if named.startswith("MIG-") else getattr(properties, "uuid", None)
    # Without a UUID (torch 2.4), the index among the visible devices still distinguishes two ranks on a host. The only
    # device of a process that no variable limits may be another one for each: it is equal to none.
    alone = f"process {os.getpid()}" if torch.cuda.device_count() == 1 else ""
    fallback = f"{socket.gethostname()}:{visible() or alone}:{index}"
    return {
        "kind": device.type,
        "index": index,
        "name": properties.name,
        "id": str(uuid) if uuid is not None else fallback,
    }


class Captures:
    """Whether a CUDA graph is captured in this process.

    Meanwhile CUDA refuses every thread's question whether an event has passed, and the capture is lost, too.
    """

    def __init__(self) -> None:
        self.asking = threading.Lock()  # held while an event is asked for: no capture begins then
        self.is_under_way = False

    def set(self, is_under_way: bool) -> None:
        """Note that a capture begins, or that it is over."""
        with self.asking:
            self.is_under_way = is_under_way


CAPTURES = Captures()


class Marks:
    """Events on the device's current stream, numbered in the order in which they were recorded.

    The first one is waited for, once: it pairs the device's clock with the host's. Of each other, the time since the
    one before it is read when the device has passed it; then it is used again.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.read = self.unreadable = 0  # marks that were read, and those that could not be
        self._spare: list[torch.cuda.Event] = []
        self._open: deque[torch.cuda.Event] = deque()
        self._before: Any = None  # the last event that was read
        self._passed_s = array("d")  # when the device passed each mark that is kept, by the host's clock
        self._last_s = 0.0  # the same of the last one that was read
        self._kept = sys.maxsize  # marks whose times are kept
        self._seen = 0  # marks that the device had passed when it was asked last

    def add(self) -> int:
        """Record an event now, and return its number; NO_MARK while a CUDA graph is being captured."""
        if torch.cuda.is_current_stream_capturing() or CAPTURES.is_under_way:
            return NO_MARK
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        if self._before is None:
            event.synchronize()
            self._before = event
            self._note(time.perf_counter())
            return 0
        self._open.append(event)
        self._harvest(HARVEST_PER_MARK)
        return self.read + len(self._open) - 1

    def keep_no_more(self) -> None:
        """Forget the times of marks that are recorded from now on: the log has no event of them."""
        self._kept = min(self._kept, self.read + len(self._open))

    def _note(self, passed_s: float) -> None:
        self._last_s = passed_s
        if self.read < self._kept:
            self._passed_s.append(passed_s)
        self.read += 1

    def is_aside(self) -> bool:
        """Return True if the current stream is not the device's own, as where FSDP gathers parameters ahead."""
        return torch.cuda.current_stream(self.device) != torch.cuda.default_stream(self.device)

    def _harvest(self, at_most: int) -> None:
        """Read the oldest events that the device has passed."""
        while at_most and self._open and self._open[0].query():
            event, passed_s = self._open.popleft(), self._last_s
            try:
                # Not always later: a prefetcher may have marked a stream of its own, which is behind the training's.
                passed_s += self._before.elapsed_time(event) / 1000.0
                event, self._before = self._before, event
            except RuntimeError:  # such as events of two devices: a step of the training must not fail for its time
                self.unreadable += 1
            self._note(passed_s)
            self._spare.append(event)
            at_most -= 1

    @property
    def passed(self) -> int:
        """Return how many marks the device has passed; another thread than the one that trains may ask."""
        with CAPTURES.asking:
            if not CAPTURES.is_under_way:
                self._seen = self._count_passed()
            return self._seen

    def _count_passed(self) -> int:
        waiting = [*self._open]
        first, last = 0, len(waiting)
        while first < last:
            middle = (first + last) // 2
            first, last = (middle + 1, last) if waiting[middle].query() else (first, middle)
        return self.read + first

    def finish(self, wait: bool) -> int:
        """Read the remaining marks, after a synchronisation if ``wait``; return how many are left unread."""
        if wait:
            torch.cuda.synchronize(self.device)
        self._harvest(len(self._open))
        return len(self._open)

    def passed_s(self) -> Iterator[tuple[int, float]]:
        """Yield the number of each mark that is kept, and when the device passed it, by the host's clock."""
        return enumerate(self._passed_s)


def is_idle(device: torch.device) -> bool:
    """Return True if the device's current stream has done all its work, a second from now at the latest."""
    until_s = time.perf_counter() + 1.0
    stream = torch.cuda.current_stream(device)
    while not (idle := stream.query()) and time.perf_counter() < until_s:
        time.sleep(0.01)
    return idle
