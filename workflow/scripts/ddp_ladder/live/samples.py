"""The last sample of a node, from the end of its CSV, which is being written."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

TAIL_BYTES = 8192  # holds more than one line, also of a node with eight GPUs
LONGEST_HEADER = 65536


@dataclass(frozen=True)
class GpuSample:
    """A GPU; None: the driver does not report it."""

    busy_fraction: float | None
    memory_used_bytes: float | None
    power_w: float | None


@dataclass(frozen=True)
class NodeSample:
    """A node at one time, unix time by its own clock. gpus is empty on a node without any."""

    node: str
    time_s: float
    cpu_fraction: float | None
    cpu_busiest_fraction: float | None
    gpus: tuple[GpuSample, ...] = ()


def last_sample(file: BinaryIO, node: str) -> NodeSample | None:
    """Return the last complete line; None before the first one. Raises OSError, or ValueError for another file."""
    header = file.readline(LONGEST_HEADER)
    begin = max(len(header), os.fstat(file.fileno()).st_size - TAIL_BYTES)
    file.seek(begin)
    *lines, _ = file.read().split(b"\n")  # the last line is being written, or empty
    if begin > len(header):
        lines = lines[1:]  # the first one is cut
    if not lines or not header.endswith(b"\n"):
        return None
    names, cells = (line.decode().rstrip("\r\n").split(",") for line in (header, lines[-1]))
    if len(cells) != len(names):
        raise ValueError(f"a line has {len(cells)} values, the header {len(names)}")
    return _sample(node, dict(zip(names, cells, strict=True)))


def _sample(node: str, cells: Mapping[str, str]) -> NodeSample:
    time_s = _figure(cells, "time_s")
    if time_s is None:
        raise ValueError("a sample without time_s")
    gpus: list[GpuSample] = []
    while (gpu := f"gpu{len(gpus)}_") + "busy_fraction" in cells:
        gpus.append(
            GpuSample(*(_figure(cells, gpu + name) for name in ("busy_fraction", "memory_used_bytes", "power_w")))
        )
    return NodeSample(node, time_s, _figure(cells, "cpu_fraction"), _figure(cells, "cpu_busiest_fraction"), tuple(gpus))


def _figure(cells: Mapping[str, str], name: str) -> float | None:
    """Return a figure; None if it is empty or there is no such column. Raises ValueError for anything else."""
    text = cells.get(name, "")
    value = float(text) if text else None
    return None if value is None or not math.isfinite(value) else value
