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
import time
from pathlib import Path
from typing import NamedTuple

from ddp_ladder_instrument.progress import Progress

VARIABLE = "DDP_LADDER_METRICS"


class Row(NamedTuple):
    """One step; times in seconds."""

    samples: int
    step_time_s: float
    data_wait_s: float


def announce(run_directory: Path) -> ReportedSteps:
    """Set DDP_LADDER_METRICS to this rank's file and return what looks at it."""
    path = run_directory / "ranks" / f"metrics{int(os.environ.get('RANK') or 0)}.jsonl"
    # If this fails, writing the record fails too, and that error is reported.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    os.environ[VARIABLE] = str(path)
    return ReportedSteps(path, run_directory / "progress.json")


def read(path: Path) -> list[Row]:
    """Return the steps in the file; none if there is no file. Raises ValueError, which names the line, or OSError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [_row(line, number) for number, line in enumerate(lines, start=1) if line.strip()]


class ReportedSteps:
    """A look at what the program has written so far, from which its progress is shown."""

    def __init__(self, path: Path, progress: Path) -> None:
        self.path = path
        self._progress = Progress(progress)
        self._offset = 0
        self._samples: list[int] = []  # of each step

    def grown(self) -> int:
        """Return the bytes that the program has written; of rank 0, show the progress too."""
        # For display only: what is wrong with the file is said at the end, when it is read as a whole.
        with contextlib.suppress(OSError, ValueError):
            if int(os.environ.get("RANK") or 0) == 0:
                self._read_on()
                if self._samples:
                    world_size = int(os.environ.get("WORLD_SIZE") or 1)
                    self._progress.update(time.perf_counter(), self._samples, world_size, epoch_steps=None)
        try:
            return os.stat(self.path).st_size
        except OSError:
            return 0

    def _read_on(self) -> None:
        """Add the lines that are new and whole. Raises OSError, or ValueError for a damaged one."""
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        first = len(self._samples) + 1
        lines = whole.decode("utf-8").splitlines()
        self._samples += [_row(line, number).samples for number, line in enumerate(lines, first) if line.strip()]
        self._offset += len(whole)


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
