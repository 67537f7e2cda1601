"""Driver and power limit of a node's GPUs, from nvidia-smi, and which of them a job step may use.

The agent asks for them, never the training.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
from typing import Any

QUERY = ("--query-gpu=name,driver_version,power.limit", "--format=csv")
TIMEOUT_S = 20.0


def gpus() -> list[dict[str, Any]]:
    """Return name, driver and power_limit_w of each GPU that this process may see; none if nvidia-smi fails."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    try:
        done = subprocess.run(
            [command, *QUERY], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse(done.stdout) if done.returncode == 0 else []


def parse(text: str) -> list[dict[str, Any]]:
    """Parse the answer with its header line; a limit that is not known (``[N/A]``, ``[Unknown Error]``) is None."""
    rows = [[field.strip() for field in row] for row in csv.reader(text.splitlines())]
    return [
        {"name": name, "driver": driver, "power_limit_w": _watts(limit)}
        for name, driver, limit in (row for row in rows[1:] if len(row) == 3)
    ]


def visible_indices(visible_devices: str | None, uuids: list[str]) -> frozenset[int]:
    """Return which of the GPUs CUDA_VISIBLE_DEVICES leaves: indices or UUIDs; as CUDA, up to the first unknown one.

    With MIG devices, which are parts of GPUs, all: torch's own count has to tell.
    """
    if visible_devices is None or "MIG-" in visible_devices:
        return frozenset(range(len(uuids)))
    found = set()
    for word in (word.strip() for word in visible_devices.split(",")):
        if word.isdigit() and int(word) < len(uuids):
            found.add(int(word))
        elif word.startswith("GPU-") and any(uuid.startswith(word) for uuid in uuids):
            found.add(next(index for index, uuid in enumerate(uuids) if uuid.startswith(word)))
        else:
            break
    return frozenset(found)


def _watts(text: str) -> float | None:
    number, _, unit = text.partition(" ")
    return float(number) if unit == "W" else None
