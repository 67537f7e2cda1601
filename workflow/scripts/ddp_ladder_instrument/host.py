"""This process and its machine: names, processors, memory."""

from __future__ import annotations

import os
import platform
import sys


def cpu_model() -> str:
    """Name of the processor, as the kernel gives it where it does."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
    except OSError:
        pass  # not Linux: the portable answer below is all there is
    return platform.processor() or platform.machine()


def cpus() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_set() -> str | None:
    """Processors that this process may use, as taskset writes them: ``0-3,8``; None where the system cannot tell."""
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
    """Largest resident set of this process.

    From /proc where there is one: getrusage starts with the launcher's peak, which a child
    inherits.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: getrusage below
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
