"""torch.cuda on CPUs. README.md says what it is not.

Tensors "on a GPU" are tensors in host memory with a mark, which a mode of torch sets and shows as their device. Their
arithmetic is done at once. What takes a GPU's time is ``torch.cuda._sleep``, whose cycles are nanoseconds here: a
stream's thread does it later, in the order in which it was put there. A stream keeps a clock of its own, so that the
time between two events is exact however busy this machine is.
"""

from __future__ import annotations

import os
import queue
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MIB = 1024**2
CAPTURING = "CUDA error: operation not permitted when stream is capturing"


class Gpu:
    """A visible GPU: its properties, and the memory that was given out."""

    def __init__(self, index: int, about: Mapping[str, str]) -> None:
        self.index, self.total = index, int(about["memory_total"])
        self.name, self.uuid = about["name"], about["uuid"].removeprefix("GPU-")
        self.used = self.peak = 0
        self.default = Stream(self)
        self.streams = weakref.WeakSet[Stream]([self.default])

    def hold(self, tensor: torch.Tensor) -> None:
        """Mark the tensor's memory as this GPU's, and count it. Raises torch.OutOfMemoryError."""
        storage = tensor.untyped_storage()
        if hasattr(storage, "_gpu"):
            return
        size = storage.nbytes()
        if self.used + size > self.total:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / MIB:.2f} MiB. GPU {self.index} has a total capacity of "
                f"{self.total / MIB:.2f} MiB of which {(self.total - self.used) / MIB:.2f} MiB is free."
            )
        self.used += size
        self.peak = max(self.peak, self.used)
        storage._gpu = self
        weakref.finalize(storage, self._free, size).atexit = False

    def _free(self, size: int) -> None:
        self.used -= size


class Passed:
    """A point in the work of a stream."""

    def __init__(self) -> None:
        self.is_done, self.at_s = threading.Event(), 0.0


class Stream:
    """Work that a thread does in its order: seconds of it, points to note and points to wait for."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.gpu = device if isinstance(device, Gpu) else gpu_of(device)
        self._work = queue.SimpleQueue[tuple[float, float, Passed | None, Passed]]()
        self._thread: threading.Thread | None = None
        self._last: Passed | None = None
        if not isinstance(device, Gpu):
            self.gpu.streams.add(self)

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.gpu.index)

    def put(self, seconds: float = 0.0, after: Passed | None = None) -> Passed:
        """Add work after a point of another stream; return the point at its end."""
        if self._thread is None:
            self._thread = threading.Thread(target=work_off, args=(self._work,), daemon=True)
            self._thread.start()
        self._last = Passed()
        self._work.put((time.perf_counter(), seconds, after, self._last))
        return self._last

    def query(self) -> bool:
        not_while_capturing()
        return self._last is None or self._last.is_done.is_set()

    def synchronize(self) -> None:
        not_while_capturing()
        if self._last is not None:
            self._last.is_done.wait()

    def wait_event(self, event: Event) -> None:
        if event.passed is not None:
            self.put(after=event.passed)

    def wait_stream(self, stream: Stream) -> None:
        if stream._last is not None and Capture.current is None:
            self.put(after=stream._last)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._context = use_stream(self)
        self._context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)


def work_off(work: queue.SimpleQueue[tuple[float, float, Passed | None, Passed]]) -> None:
    """Do the work of a stream, by its clock, which is never ahead of the host's."""
    now_s = 0.0
    while True:
        put_at_s, seconds, after, passed = work.get()
        if after is not None:
            after.is_done.wait()
        now_s = max(now_s, put_at_s, after.at_s if after else 0.0) + seconds
        while (left_s := now_s - time.perf_counter()) > 0:
            time.sleep(left_s)
        passed.at_s = now_s
        passed.is_done.set()


class Event:
    """A point in the work of a stream, which may be recorded again."""

    passed: Passed | None = None

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.has_timing = enable_timing

    def record(self, stream: Stream | None = None) -> None:
        self.passed = (stream or current_stream()).put()

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        not_while_capturing()
        return self.passed is None or self.passed.is_done.is_set()

    def synchronize(self) -> None:
        not_while_capturing()
        if self.passed is not None:
            self.passed.is_done.wait()

    def elapsed_time(self, end: Event) -> float:
        if not (self.has_timing and end.has_timing and self.passed and end.passed):
            raise ValueError("Both events must be created with argument 'enable_timing=True' and recorded.")
        if not (self.query() and end.query()):
            raise RuntimeError("CUDA error: device not ready")
        return (end.passed.at_s - self.passed.at_s) * 1e3


class Capture(TorchDispatchMode):
    """What torch computes while a graph is captured."""

    current: Capture | None = None  # as CUDA's global mode of capture, which is torch's default: for all threads
    is_valid = True

    def __init__(self) -> None:
        super().__init__()
        self.seconds, self.stream = 0.0, current_stream()
        self.calls: list[tuple[Callable[..., Any], Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, made))
        return made


def not_while_capturing() -> None:
    """Refuse what CUDA refuses to every thread while a graph is captured: the capture is then lost, too."""
    if Capture.current is not None:
        Capture.current.is_valid = False
        raise RuntimeError(CAPTURING)


class CUDAGraph:
    """Work that was captured: replay computes it again into the same tensors."""

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        self._captured = Capture.current = Capture()
        self._captured.__enter__()

    def capture_end(self) -> None:
        self._captured.__exit__(None, None, None)
        Capture.current = None
        if not self._captured.is_valid:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    def replay(self) -> None:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for func, args, kwargs, made in self._captured.calls:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(made), tree_leaves(again), strict=True):
                    if isinstance(old, torch.Tensor) and old is not new:
                        old.detach().copy_(new)
        current_stream().put(self._captured.seconds)

    def reset(self) -> None:
        self._captured.calls.clear()


@contextmanager
def graph(cuda_graph: CUDAGraph, pool: Any = None, stream: Any = None, **_: Any) -> Iterator[None]:
    synchronize()
    with use_stream(stream or Stream()):
        cuda_graph.capture_begin()
        try:
            yield
        finally:
            cuda_graph.capture_end()


class OnGpu(TorchFunctionMode):
    """Tensors that are created on a GPU, moved there, or computed from such, have its mark."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, gpu, kwargs = getattr(func, "__name__", ""), gpu_with((args, kwargs)), kwargs or {}
        if func in SHOWN and gpu is not None:
            return SHOWN[func](gpu)
        if gpu is not None and name in WAITS:
            current_stream().synchronize()
        wanted = None
        if func not in (torch.device, torch._C._nn._parse_to):
            wanted, args, kwargs = on_host(name, args, kwargs)
        target = gpu if wanted is None else gpu_of(wanted) if wanted.type == "cuda" else None
        made = args[0] if name in ("cuda", "cpu") else func(*args, **kwargs)
        if name in MOVES and made is args[0] and target is not gpu:
            made = made.clone()
        for leaf in tree_leaves(made) if target is not None else ():
            if isinstance(leaf, torch.Tensor):
                target.hold(leaf)
        return made


MOVES = ("to", "cuda", "cpu")
WAITS = ("item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__float__", "__int__", "__repr__")
SHOWN: dict[Any, Callable[[Gpu], Any]] = {
    torch.Tensor.device.__get__: lambda gpu: torch.device("cuda", gpu.index),
    torch.Tensor.is_cuda.__get__: lambda gpu: True,
    torch.Tensor.is_cpu.__get__: lambda gpu: False,
    torch.Tensor.get_device: lambda gpu: gpu.index,
}


def gpu_with(values: Any) -> Gpu | None:
    """Return the GPU of the first tensor that has one."""
    tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided)
    return next((storage._gpu for each in tensors if hasattr(storage := each.untyped_storage(), "_gpu")), None)


def on_host(name: str, args: Any, kwargs: Any) -> tuple[torch.device | None, Any, Any]:
    """Return the device that a call names, if it does, and its arguments with the host in its place."""
    if name in ("cuda", "cpu"):
        return torch.device(name, *args[1:2]) if name == "cuda" else torch.device("cpu"), args, kwargs
    named: list[torch.device] = []

    def of_host(value: Any) -> Any:
        if not isinstance(value, torch.device) and not (isinstance(value, str) and re.match("(cuda|cpu)(:|$)", value)):
            return value
        named.append(torch.device(value))
        return torch.device("cpu")

    args, kwargs = tuple(map(of_host, args)), {key: of_host(value) for key, value in kwargs.items()}
    return (named[0] if named else None), args, kwargs


def visible_gpus() -> list[dict[str, str]]:
    """Return the GPUs of the file that this process may use. Of slices (MIG), CUDA shows one, with its GPU's UUID."""
    every: dict[str, dict[str, str]] = {}
    for line in Path(os.environ["STAND_IN_GPUS"]).read_text().splitlines():
        index, key, value = re.split("[. ]", line.replace(".mig.", ".mig_"), maxsplit=2)
        every.setdefault(index, {})[key] = value
    every = {str(k): gpu for k, gpu in enumerate(gpu for gpu in every.values() if "gone" not in gpu)}
    words = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(every)).split(",")
    for gpu in every.values():
        if words[0] == gpu.get("mig_uuid"):
            return [{**gpu, "name": gpu["mig_name"], "memory_total": gpu["mig_memory_total"]}]
    return [every[word] for word in words if word in every]


GPUS: list[Gpu] = []
HERE = threading.local()  # device and stream of a thread


def gpu_of(device: Any = None) -> Gpu:
    """Return the GPU that a caller means: by default, the current one. Raises RuntimeError as CUDA does."""
    index = device if isinstance(device, int) else None if device is None else torch.device(device).index
    index = current_device() if index is None else index
    if index >= len(GPUS):
        raise RuntimeError("CUDA error: invalid device ordinal")
    return GPUS[index]


def current_device() -> int:
    return getattr(HERE, "device", 0)


def set_device(device: Any) -> None:
    HERE.device = gpu_of(device).index


def current_stream(device: Any = None) -> Stream:
    gpu = gpu_of(device)
    stream = getattr(HERE, "stream", None)
    return stream if stream is not None and stream.gpu is gpu else gpu.default


@contextmanager
def use_stream(stream: Stream | None) -> Iterator[None]:
    before, HERE.stream = getattr(HERE, "stream", None), stream or getattr(HERE, "stream", None)
    try:
        yield
    finally:
        HERE.stream = before


@contextmanager
def use_device(device: Any) -> Iterator[None]:
    before = current_device()
    set_device(device)
    try:
        yield
    finally:
        HERE.device = before


def synchronize(device: Any = None) -> None:
    not_while_capturing()
    for stream in [*gpu_of(device).streams]:
        stream.synchronize()


def is_capturing() -> bool:
    """Return True if the current stream is captured: those of other threads are not."""
    return Capture.current is not None and Capture.current.stream is current_stream()


def sleep(cycles: int) -> None:
    """Keep the GPU busy for so many nanoseconds."""
    if Capture.current is not None and is_capturing():
        Capture.current.seconds += cycles * 1e-9
    else:
        current_stream().put(cycles * 1e-9)


def properties(device: Any = None) -> SimpleNamespace:
    gpu = gpu_of(device)
    return SimpleNamespace(
        name=gpu.name, uuid=gpu.uuid, total_memory=gpu.total, major=8, minor=0, multi_processor_count=108
    )


def with_gloo(name: str) -> None:
    """Let Gloo do what scripts ask of NCCL; the group has the name that was asked for."""
    asked: list[str] = []
    make, backends = dist.init_process_group, dist.get_backend_config

    def make_group(backend: str | None = None, *args: Any, device_id: Any = None, **kwargs: Any) -> None:
        asked.append(backend or name)
        make("gloo", *args, **kwargs)

    dist.init_process_group = make_group
    dist.get_backend_config = lambda group=None: f"cpu:gloo,cuda:{asked[-1]}" if asked else backends(group)


def install() -> None:
    """Replace torch.cuda's functions, unless no GPU is visible."""
    GPUS.extend(Gpu(index, about) for index, about in enumerate(visible_gpus()))
    if not GPUS:
        return
    replaced: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: False,  # so that calls for later, such as seeds, stay where they are
        "init": lambda: None,
        "device_count": lambda: len(GPUS),
        "current_device": current_device,
        "set_device": set_device,
        "device": use_device,
        "get_device_properties": properties,
        "get_device_name": lambda device=None: gpu_of(device).name,
        "get_device_capability": lambda device=None: (8, 0),
        "synchronize": synchronize,
        "Event": Event,
        "Stream": Stream,
        "stream": use_stream,
        "current_stream": current_stream,
        "default_stream": lambda device=None: gpu_of(device).default,
        "is_current_stream_capturing": is_capturing,
        "CUDAGraph": CUDAGraph,
        "graph": graph,
        "memory_allocated": lambda device=None: gpu_of(device).used,
        "max_memory_allocated": lambda device=None: gpu_of(device).peak,
        "memory_reserved": lambda device=None: gpu_of(device).used,
        "mem_get_info": lambda device=None: (gpu_of(device).total - gpu_of(device).used, gpu_of(device).total),
        "empty_cache": lambda: None,
        "_sleep": sleep,
    }
    for name, value in replaced.items():
        setattr(torch.cuda, name, value)
    torch.Tensor.pin_memory = lambda tensor, device=None: tensor
    with_gloo("nccl")
    OnGpu().__enter__()
