"""This process and its machine, without torch: CPUs, memory; the program's sources, configuration and libraries."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

CONFIGURATION = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".py")
MOST_FILES = 500
LARGEST_BYTES = 4_000_000
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
LIBRARIES = (
    "accelerate", "apex", "datasets", "deepspeed", "flash_attn", "lightning", "nvidia.dali", "numpy",
    "pytorch_lightning", "timm", "torchaudio", "torchvision", "transformer_engine", "transformers", "triton",
)  # fmt: skip
"""Libraries whose version can change the work or the speed of a step."""
UTILITIES = "torch._dynamo.utils"


class Place(NamedTuple):
    """This process among those that the launcher has started."""

    rank: int
    local_rank: int
    size: int


def place(environment: Mapping[str, str] = os.environ) -> Place:
    """Return the place that the launcher's variables give, or, without a RANK, those of srun with several tasks."""
    names = "RANK", "LOCAL_RANK", "WORLD_SIZE"
    if not environment.get("RANK") and int(environment.get("SLURM_STEP_NUM_TASKS") or 1) > 1:
        names = "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"
    rank, local_rank, size = (environment.get(name) for name in names)
    return Place(int(rank or 0), int(local_rank or 0), int(size or 1))


def rendezvous(init_method: str | None = None) -> str | None:
    """Return the ``host:port`` at which init_process_group() meets; None if it is no such place, or none is set."""
    scheme, _, place = (init_method or "env://").partition("://")
    if scheme == "tcp":
        return place.partition("?")[0].rstrip("/") or None
    address, port = (os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
    return f"{address}:{port}" if scheme == "env" and address and port else None


def cpu_model() -> str:
    """Return the processor's name, from the kernel if it gives one."""
    return _of_kernel("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def _of_kernel(path: str, name: str) -> str | None:
    """Return the value of the first line ``name: value`` of a file of the kernel; None if it has none."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:  # OSError: not Linux
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return None


def cpu() -> dict[str, Any]:
    """Return the record's ``device`` of a rank that trains on no GPU."""
    return {"kind": "cpu", "index": None, "name": cpu_model(), "id": f"cpu:{os.getpid()}"}


def cpus() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_set() -> str | None:
    """Return the CPUs that this process may use, in taskset's notation (``0-3,8``); None if the system has no list."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    ranges: list[list[int]] = []
    for cpu in sorted(os.sched_getaffinity(0)):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def peak_memory_bytes() -> int:
    """Return the peak resident set size of this process.

    It is read from /proc if possible: getrusage starts with the launcher's peak, which a child inherits.
    """
    if highest := _of_kernel("/proc/self/status", "VmHWM"):
        return int(highest.split()[0]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_limit_bytes(memory_mb: int | None) -> int:
    """Return this rank's equal share of the memory that the job has on this node.

    The job has the least of the machine's memory, the limits of its control groups, and what it asked for (memory_mb).
    """
    amounts = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_group_limits_bytes()]
    if memory_mb is not None:
        amounts.append(memory_mb * 1024**2)
    return min(amounts) // int(os.environ.get("LOCAL_WORLD_SIZE") or 1)


def _group_limits_bytes() -> list[int]:
    """Return the memory limits of this process's control groups and of those above them, of version 1 and 2."""
    limits_bytes = []
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            groups = [line.rstrip("\n").split(":", 2)[1:] for line in file]
    except OSError:
        return []  # not Linux
    for controllers, path in groups:
        if controllers == "":
            root, name = "/sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            root, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        parts = path.strip("/").split("/")
        for depth in range(len(parts) + 1):
            limit = os.path.join(root, *parts[:depth], name)
            # The root has no limit, a container may not see those above it; "max" is none.
            with contextlib.suppress(OSError, ValueError), open(limit, encoding="ascii") as file:
                limits_bytes.append(int(file.read()))
    return limits_bytes


def modules() -> Iterator[dict[str, Any]]:
    """Yield the names of each imported module. It is not asked itself: a lazy one would import, or raise, anything."""
    for module in list(sys.modules.values()):
        if issubclass(type(module), ModuleType):
            yield object.__getattribute__(module, "__dict__")


def source_files() -> dict[str, str]:
    """Return the SHA-256 of ``__main__`` and of every module from its directory or below, by relative path."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is None:
        return {}
    root = _root(os.path.realpath(main), getattr(sys.modules["__main__"], "__package__", None) or "")
    own = os.path.dirname(os.path.abspath(__file__)) + os.sep
    files = {os.path.realpath(main)}
    for names in modules():
        path = names.get("__file__")
        if isinstance(path, str) and path.endswith(".py"):
            files.add(os.path.realpath(path))
    inside = sorted(path for path in files if path.startswith(root + os.sep))
    library = os.path.realpath(os.path.dirname(os.__file__)) + os.sep
    chosen = [path for path in inside if not path.startswith((own, library)) and not any(map(path.count, INSTALLED))]
    return {os.path.relpath(path, root): digest for path in chosen[:MOST_FILES] if (digest := sha256(path))}


def _root(main: str, package: str) -> str:
    """Return the directory that contains the script, or the top package of a module given with -m."""
    directory = os.path.dirname(main)
    for _ in package.split(".") if package else ():
        directory = os.path.dirname(directory)
    return directory


def configuration_files(arguments: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of the configuration files among the arguments (``conf.yaml``, ``--config=conf.yaml``)."""
    names = [argument.partition("=")[2] or argument for argument in arguments]
    files = [name for name in names if name.endswith(CONFIGURATION) and os.path.isfile(name)]
    return {name: digest for name in files if (digest := sha256(name))}


def sha256(path: str) -> str | None:
    """Return the file's SHA-256; None if it cannot be read any more, or is too large to be source."""
    try:
        if os.path.getsize(path) > LARGEST_BYTES:
            return None
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


def libraries() -> dict[str, str]:
    """Return the versions of the libraries that the program has imported."""
    versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in LIBRARIES}
    return {name: str(version) for name, version in versions.items() if version is not None}


def compile_s() -> float:
    """Return the seconds that this process spent compiling, forward and backward, in all steps; 0 if it never did.

    Raises RuntimeError if this torch does not report them.
    """
    if UTILITIES not in sys.modules:
        return 0.0
    metrics = getattr(sys.modules[UTILITIES], "compilation_time_metrics", None)
    if metrics is None:
        raise RuntimeError(f"{UTILITIES}.compilation_time_metrics is missing")
    return float(sum(sum(seconds) for name, seconds in metrics.items() if _is_whole(name)))


def _is_whole(name: str) -> bool:
    """Return True if this metric times a whole compilation, not a part; the names differ between releases."""
    return name.endswith("compile_inner") or name == "backward._backward_impl"
