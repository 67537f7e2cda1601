"""Names, CPUs and memory of this process and its machine."""

from __future__ import annotations

import os
import platform
import sys


def cpu_model() -> str:
    """Return the processor's name, from the kernel if it gives one."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
    except OSError:
        pass  # not Linux: use the portable answer below
    return platform.processor() or platform.machine()


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
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: use getrusage below
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
