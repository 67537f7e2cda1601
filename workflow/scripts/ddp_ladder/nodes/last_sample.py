"""The last sample of a node, or line of another table, from the end of its file: small, whatever the file's size."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ddp_ladder.common.files import opened
from ddp_ladder.nodes.files import THROTTLE_REASONS

TAIL_BYTES = 8192  # of a table: more than one line, also of a node with eight GPUs


def last_cells(path: Path) -> dict[str, str]:
    """Return the known values of the last complete line of a table as text; empty before the first one.

    Raises OSError or ValueError.
    """
    with opened(path) as file:
        header = file.readline()
        file.seek(max(len(header), os.fstat(file.fileno()).st_size - TAIL_BYTES))
        *lines, _ = file.read().split(b"\n")  # the last line is being written, or empty
    if not lines:
        return {}
    names, cells = (line.decode().strip().split(",") for line in (header, lines[-1]))
    return {name: cell for name, cell in zip(names, cells, strict=True) if cell}


def last_sample(path: Path) -> dict[str, float]:
    """Return the figures of the last complete line of a node's samples; empty before the first one."""
    return {name: float(cell) for name, cell in last_cells(path).items() if THROTTLE_REASONS not in name}


def of_gpus(sample: Mapping[str, float], column: str) -> list[float]:
    """Return the values of a column of all GPUs in a node's sample."""
    return [value for name, value in sample.items() if name.startswith("gpu") and name.partition("_")[2] == column]
