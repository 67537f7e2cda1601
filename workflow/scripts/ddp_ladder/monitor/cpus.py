"""CPU times of the node, from /proc/stat."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
_TIMES = 8  # user nice system idle iowait irq softirq steal; those of guests are in user and nice
_IDLE = (3, 4)

CpuTimes = Mapping[int, tuple[int, int]]
"""Of each CPU: busy time and all time since the boot, in ticks."""


@dataclass(frozen=True)
class CpuUse:
    """Busy fractions, 0 to 1, between two samples. None: unknown."""

    usable: float | None = None  # mean of the CPUs that may be used
    busiest: float | None = None  # the busiest of them
    node: float | None = None  # mean of all CPUs


def parse_stat(text: str) -> CpuTimes:
    """Return the times in the text of /proc/stat."""
    times = {}
    for line in text.splitlines():
        if not line.startswith("cpu"):
            break
        name, *fields = line.split()
        if name != "cpu":
            ticks = [int(field) for field in fields[:_TIMES]]
            total = sum(ticks)
            times[int(name[3:])] = total - sum(ticks[index] for index in _IDLE), total
    return times


def read_times(path: Path = STAT) -> CpuTimes:
    """Return the times now. Raises OSError or ValueError."""
    return parse_stat(path.read_text())


def use(before: CpuTimes, now: CpuTimes, usable: Collection[int]) -> CpuUse:
    """Return the use between two samples. A CPU that went offline or came back is left out."""
    fractions: dict[int, float] = {}
    for cpu, (busy, total) in now.items():
        busy_before, total_before = before.get(cpu, (0, total))
        if total > total_before:
            # The kernel may set iowait back by a tick, which makes busy time appear.
            fractions[cpu] = min(1.0, max(0.0, (busy - busy_before) / (total - total_before)))
    here = [fraction for cpu, fraction in fractions.items() if cpu in usable]
    return CpuUse(_mean(here), max(here, default=None), _mean(list(fractions.values())))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
