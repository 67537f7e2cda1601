"""Driver and power limit of a node's GPUs, from nvidia-smi. The agent asks for them, never the training."""

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


def _watts(text: str) -> float | None:
    number, _, unit = text.partition(" ")
    return float(number) if unit == "W" else None
