"""Progress of a scale's job and of Slurm jobs: a bar on a terminal, lines in a pipe."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from ddp_ladder.common.files import RunDirectory, read_json
from ddp_ladder.common.formats import duration, significant
from ddp_ladder.common.messages import printable
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.record import Record, placed
from ddp_ladder.run.expected_steps import Expected, Total

# In a pipe or a log, lines get rarer the longer a run takes, so that a run of a day does not print thousands.
LINE_EVERY_S = 10.0
LINE_EVERY_FRACTION = 0.1
WITH_BAR, WITHOUT_BAR = "{desc} {bar} {unit}", "{desc} {unit}"
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


def _print(text: str, stream: TextIO) -> None:
    """Print a line above the bar, if any; characters that the encoding lacks are replaced."""
    encoding = stream.encoding or "utf-8"
    # If the disk of the job's log is full, or the terminal is gone, the line is lost and the run goes on.
    with contextlib.suppress(OSError), tqdm.external_write_mode(file=stream):
        print(printable(text).encode(encoding, "replace").decode(encoding), file=stream, flush=True)


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


class RunConsole:
    """The progress of one run after the other. ``show`` may be called at any rate."""

    def __init__(self, runs: int, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._runs = runs
        self._index = 0
        self._label = ""
        self._bar: tqdm[Any] | None = None
        self._started_s = 0.0
        self._next_line_s = 0.0
        self._has_steps = False
        self._unreadable = False

    def say(self, text: str) -> None:
        _print(text, self._stream)

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
            # The text is tqdm's unit, because its postfix always begins with a comma.
            self._bar = tqdm(desc=self._label, file=self._stream, leave=False, unit="starting", bar_format=WITHOUT_BAR)
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
        if self._bar is not None:
            total = expected.total(progress)
            self._bar.n, self._bar.total = progress["step"] if progress else 0, total.steps if total else None
            self._bar.bar_format = WITH_BAR if total else WITHOUT_BAR
            self._bar.unit = text
            self._bar.refresh()
        elif time.monotonic() >= self._next_line_s or (progress is not None and not self._has_steps):
            self._has_steps = progress is not None  # the first steps are shown at once: a run may end in 10 s
            now_s = time.monotonic()
            self._next_line_s = now_s + max(LINE_EVERY_S, LINE_EVERY_FRACTION * (now_s - self._started_s))
            self.say(f"{self._label}: {text}")

    def ended(self, record: Record) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        self.say(f"{self._label}: {outcome(record)}")

    def reused(self, spec: RunSpec) -> None:
        self.say(f"{self._begin(spec)}: finished earlier, kept")


class JobConsole:
    """The terminal of a start that waits for Slurm jobs: lines, and a status line below them."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._bar: tqdm[Any] | None = None

    def say(self, text: str) -> None:
        _print(text, self._stream)

    def status(self, jobs: Sequence[str]) -> None:
        """Show the jobs' states on a terminal; nothing in a pipe, which gets lines only."""
        if not self._stream.isatty():
            return
        if self._bar is None and jobs:
            self._bar = tqdm(file=self._stream, leave=False, bar_format="{desc}", dynamic_ncols=True)
        if self._bar is not None:
            self._bar.set_description_str(", ".join(jobs))
        if self._bar is not None and not jobs:
            self._bar.close()
            self._bar = None


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
