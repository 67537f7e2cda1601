"""Progress of a scale's job and of Slurm jobs: a bar on a terminal, lines in a pipe."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from ddp_ladder.common.files import RunDirectory, read_json
from ddp_ladder.common.formats import duration, significant
from ddp_ladder.common.messages import printable
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.record import Record, placed
from ddp_ladder.run.expected_steps import Expected, Total

# In a pipe or a log, lines get rarer the longer a run takes, so that a run of a day does not print thousands.
LINE_EVERY_S = 10.0
LINE_EVERY_FRACTION = 0.1
BAR, REST = "\u2588", "\u2591"  # full block, light shade
LEAST_BAR = 10  # characters: a shorter bar shows nothing
LAST_WORDS = "every run has left its record"  # the last line of a scale's job
LAST_WORDS_OF_PREFLIGHT = "the preflight has left its result"  # of one that runs alone


def read_progress(path: Path) -> Mapping[str, Any] | None:
    """Return rank 0's latest progress; None before its first step. Raises OSError, or ValueError for anything else."""
    try:
        data = read_json(path)
    except FileNotFoundError:
        return None
    if not (isinstance(data, dict) and all(_is_amount(data.get(name)) for name in ("step", "elapsed_s"))):
        raise ValueError(f"{path} is not what a run writes about its progress")
    for name in ("samples_per_s", "epoch_steps"):
        if data.get(name) is not None and not _is_amount(data[name]):
            raise ValueError(f"{path}: {name} is not a figure")
    return {"samples_per_s": None, **data}


def epoch_steps(directory: RunDirectory) -> int | None:
    """Return the steps of one pass over the data in a finished run; None if they are unknown."""
    try:
        progress = read_progress(directory.progress)
    except (OSError, ValueError):
        return None
    found = progress and progress.get("epoch_steps")
    return found if isinstance(found, int) and found > 0 else None


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


class _Console:
    """Lines of text and, on a terminal, a status line below them. Characters that the encoding lacks are replaced."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._status = ""

    def say(self, text: str) -> None:
        """Print a line above the status line."""
        erased = "\r\x1b[K" if self._status else ""
        self._write(f"{erased}{printable(text)}\n{self._status}")

    def _show(self, text: str, fraction: float | None = None) -> None:
        """Show the status line, with a bar where there is room for one; nothing in a pipe. An empty text ends it."""
        if not self._stream.isatty():
            return
        columns = shutil.get_terminal_size().columns
        status = printable(text)[: columns - 1]
        width = columns - len(status) - 2
        if fraction is not None and width >= LEAST_BAR:
            done = int(width * min(1.0, fraction))
            status += f" {BAR * done}{REST * (width - done)}"
        if status or self._status:
            self._status = status
            self._write(f"\r\x1b[K{status}")

    def _write(self, text: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        # If the disk of the job's log is full, or the terminal is gone, the line is lost and the run goes on.
        with contextlib.suppress(OSError):
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()


def state(progress: Mapping[str, Any] | None, expected: Expected, left_at_most_s: float | None = None) -> str:
    """Return ``step 120 of 400, 1,240 samples/s, 15 s left``, as far as it is known."""
    at_most = "" if left_at_most_s is None else f", at most {duration(left_at_most_s)} left"
    if progress is None:
        return f"starting{at_most}"
    rate = progress["samples_per_s"]  # None before the second step
    rate_text = f"{significant(rate)} samples/s" if rate is not None else "warming up"
    total = expected.total(progress)
    steps = f"step {progress['step']:,}" + (f" of {total}" if total else "")
    rest_s = left_s(progress, total)
    return f"{steps}, {rate_text}{at_most if rest_s is None else f', {duration(rest_s)} left'}"


def left_s(progress: Mapping[str, Any], total: Total | None) -> float | None:
    """Return the time to the last step at the mean pace so far; None if that is unknown."""
    if total is None or progress["step"] < 2 or not progress["elapsed_s"]:
        return None
    per_step_s = progress["elapsed_s"] / (progress["step"] - 1)  # counted from the end of the first step
    return float(per_step_s * (total.steps - progress["step"]))


class RunConsole(_Console):
    """The progress of one run after the other. ``show`` may be called at any rate."""

    def __init__(self, runs: int, stream: TextIO = sys.stderr) -> None:
        super().__init__(stream)
        self._runs = runs
        self._index = 0
        self._label = ""
        self._started_s = 0.0
        self._next_line_s = 0.0
        self._has_steps = False
        self._unreadable = False

    def expect(self, runs: int) -> None:
        """Count so many further runs."""
        self._runs += runs

    def _begin(self, spec: RunSpec) -> str:
        self._index += 1
        run = f"{spec.variant}/{spec.mode}/r{spec.repeat}"
        return f"{spec.stage} {spec.scale} [{self._index}/{self._runs}] {run}"

    def started(self, spec: RunSpec) -> None:
        self._label = self._begin(spec)
        self._started_s = time.monotonic()
        self._unreadable = False
        self._has_steps = False
        self._next_line_s = self._started_s + LINE_EVERY_S
        if self._stream.isatty():
            self._show(f"{self._label} starting")
        else:
            self.say(f"{self._label}: started")

    def follow(self, path: Path, expected: Expected, left_at_most_s: float) -> None:
        """Show the progress in a file; report once if it cannot be read."""
        try:
            progress = read_progress(path)
        except (OSError, ValueError) as error:
            if not self._unreadable:
                self.say(f"{self._label}: the progress cannot be shown, the run goes on: {error}")
            self._unreadable = True
            return
        self.show(progress, expected, left_at_most_s)

    def show(self, progress: Mapping[str, Any] | None, expected: Expected, left_at_most_s: float) -> None:
        text = state(progress, expected, left_at_most_s)
        if self._stream.isatty():
            total = expected.total(progress)
            self._show(f"{self._label} {text}", progress["step"] / total.steps if progress and total else None)
        elif time.monotonic() >= self._next_line_s or (progress is not None and not self._has_steps):
            self._has_steps = progress is not None  # the first steps are shown at once: a run may end in 10 s
            now_s = time.monotonic()
            self._next_line_s = now_s + max(LINE_EVERY_S, LINE_EVERY_FRACTION * (now_s - self._started_s))
            self.say(f"{self._label}: {text}")

    def ended(self, record: Record) -> None:
        self._show("")
        self.say(f"{self._label}: {outcome(record)}")

    def reused(self, spec: RunSpec) -> None:
        self.say(f"{self._begin(spec)}: finished earlier, kept")


class JobConsole(_Console):
    """The terminal of a start that waits for Slurm jobs: lines, and their states below them."""

    def status(self, jobs: Sequence[str]) -> None:
        """Show the jobs' states on a terminal; nothing in a pipe, which gets lines only."""
        self._show(", ".join(jobs))


def outcome(record: Record) -> str:
    """Return one line on how a run ended."""
    if record.status == "ok" and record.throughput and record.timing:
        return (
            f"{significant(record.throughput.samples_per_s)} samples/s, {record.timing.measured_steps} steps measured, "
            f"{record.timing.step_time_s * 1000:.1f} ms per step, {duration(record.timing.wall_s)} in all"
        )
    failure = record.failure
    if failure and record.spec.is_plain:
        return f"no plain baseline: {failure.why}"
    if failure is None:
        return "FAILED"
    return f"FAILED: {placed(failure.verdict, failure.place, failure.why)}: {failure.why}"
