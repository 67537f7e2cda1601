"""Driver and power limit of a node's GPUs, as nvidia-smi tells them. Asked by the agent, never by the training."""

from __future__ import annotations

import csv
import shutil
import subprocess
from typing import Any

QUERY = ("--query-gpu=name,driver_version,power.limit", "--format=csv")
TIMEOUT_S = 20.0


def gpus() -> list[dict[str, Any]]:
    """Name, driver and power_limit_w of each GPU that this process may see; none without nvidia-smi or its answer."""
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
    """The answer with its header line; a limit that the GPU does not tell (``[N/A]``, ``[Unknown Error]``) is None."""
    rows = [[field.strip() for field in row] for row in csv.reader(text.splitlines())]
    return [
        {"name": name, "driver": driver, "power_limit_w": _watts(limit)}
        for name, driver, limit in (row for row in rows[1:] if len(row) == 3)
    ]


def _watts(text: str) -> float | None:
    number, _, unit = text.partition(" ")
    return float(number) if unit == "W" else None
