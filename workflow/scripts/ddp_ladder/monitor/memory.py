"""Memory of the node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
SHM = "/dev/shm"


def parse_meminfo(text: str) -> Mapping[str, int]:
    """Return the values of /proc/meminfo in bytes. Raises ValueError."""
    lines = (line.partition(":") for line in text.splitlines() if line.rstrip().endswith(" kB"))
    return {name: int(value.split()[0]) * 1024 for name, _, value in lines}


def total_bytes() -> int:
    """Return the memory of the node. Raises OSError, ValueError or KeyError."""
    return parse_meminfo(MEMINFO.read_text())["MemTotal"]


def used_bytes() -> int:
    """Return the memory that is not available for new processes. Raises OSError, ValueError or KeyError."""
    memory = parse_meminfo(MEMINFO.read_text())
    return memory["MemTotal"] - memory["MemAvailable"]


def shm_used_bytes() -> int:
    """Return what is in /dev/shm. Raises OSError."""
    there = os.statvfs(SHM)
    return (there.f_blocks - there.f_bfree) * there.f_frsize
