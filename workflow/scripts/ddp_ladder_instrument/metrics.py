"""DDP_LADDER_METRICS: steps that a program without torch reports itself, one JSON object per line.

    {"samples": 64, "seconds": 0.183, "wait_seconds": 0.012}

samples: consumed by this process in this step; seconds: the step's whole time; wait_seconds: the part of
it spent waiting for data (optional).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from pathlib import Path
from typing import NamedTuple

VARIABLE = "DDP_LADDER_METRICS"


class Row(NamedTuple):
    """One step; times in seconds."""

    samples: int
    step_time_s: float
    data_wait_s: float


def announce(run_directory: Path) -> Path:
    """Set DDP_LADDER_METRICS to this rank's file and return its path."""
    path = run_directory / "ranks" / f"metrics{int(os.environ.get('RANK') or 0)}.jsonl"
    # If this fails, writing the record fails too, and that error is reported.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    os.environ[VARIABLE] = str(path)
    return path


def read(path: Path) -> list[Row]:
    """Return the steps in the file; none if there is no file. Raises ValueError, which names the line, or OSError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [_row(line, number) for number, line in enumerate(lines, start=1) if line.strip()]


def _row(line: str, number: int) -> Row:
    try:
        data = json.loads(line)
        samples, seconds, wait_s = data["samples"], float(data["seconds"]), float(data.get("wait_seconds", 0.0))
        if not isinstance(samples, int) or isinstance(samples, bool) or samples < 0:
            raise ValueError(f"samples is {samples!r}, not a whole number")
        if not (math.isfinite(seconds) and seconds > 0 and 0 <= wait_s <= seconds):
            raise ValueError(f"seconds is {seconds}, wait_seconds {wait_s}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"line {number} of {VARIABLE}: {type(error).__name__}: {error}") from error
    return Row(samples, seconds, wait_s)
