"""Progress of a scale's job and of Slurm jobs: a status line on a terminal, lines in a pipe."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, TextIO

from ddp_ladder.common.formats import duration, percent, significant
from ddp_ladder.common.messages import for_terminal, printable
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.raw_models import Progress, read_progress
from ddp_ladder.records.record import Record

# In a pipe or a log, lines get rarer the longer a run takes, so that a run of a day does not print thousands.
LINE_EVERY_S = 10.0
LINE_EVERY_FRACTION = 0.1
LAST_WORDS_OF = {  # the last line of a scale's job, by its kind
    "measure": "every run has left its record",
    "preflight": "the preflight has left its result",
    "fit": "the batch per GPU is chosen",
    "production": "the link has left its record",
    "rehearsal": "the rehearsal has left its result",
}


def expected_steps(spec: RunSpec, records: Iterable[Record]) -> int | None:
    """Return how many steps a run will make: as many as another repeat, or at most max_steps; None if unknown."""
    like = (spec.variant, spec.mode, spec.scale)
    good = (each for each in records if each.status == "ok")
    good = (each for each in good if (each.spec.variant, each.spec.mode, each.spec.scale) == like)
    return next((max(rank.steps for rank in record.ranks) for record in good), spec.max_steps)


def state(progress: Progress | None, expected: int | None, left_at_most_s: float | None = None) -> str:
    """Return ``step 120 of 400, 1,240 samples/s, 15 s left``, as far as it is known. expected: steps of the run."""
    at_most = "" if left_at_most_s is None else f", at most {duration(left_at_most_s)} left"
    if progress is None:
        return f"starting{at_most}"
    rate = "warming up" if progress.samples_per_s is None else f"{significant(progress.samples_per_s)} samples/s"
    if expected is None or expected < progress.step:
        return f"step {progress.step:,}, {rate}{at_most}"
    if progress.step > 1 and progress.elapsed_s:
        left_s = progress.elapsed_s / (progress.step - 1) * (expected - progress.step)
        at_most = f", {duration(left_s)} left"
    return f"step {progress.step:,} of {expected:,}, {rate}{at_most}"


def progress_in(line: str) -> str | None:
    """Return the run and its state from a line that follow has printed in a pipe; None for any other line."""
    form = re.fullmatch(r"\S+ \S+ ((?:\[\d+/\d+\] \S+|link \d+): (?:starting|step (?:[0-9]|not known)).*)", line)
    return form and form[1]


class Console:
    """Lines of text and, on a terminal, a status line below them. Characters that the encoding lacks are replaced."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._status = ""

    @property
    def is_terminal(self) -> bool:
        return self._stream.isatty()

    def say(self, text: str) -> None:
        """Print a line above the status line."""
        erased = "\r\x1b[K" if self._status else ""
        self._write(f"{erased}{for_terminal(printable(text), self._stream)}\n{self._status}")

    def status(self, text: str) -> None:
        """Show the status line; nothing in a pipe. An empty text ends it."""
        if self.is_terminal and (text or self._status):
            self._status = printable(text)[: shutil.get_terminal_size().columns - 1]
            self._write(f"\r\x1b[K{self._status}")

    def _write(self, text: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        # If the disk of the job's log is full, or the terminal is gone, the line is lost and the run goes on.
        with contextlib.suppress(OSError):
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()


class RunConsole(Console):
    """The progress of one run after the other. ``follow`` may be called at any rate."""

    def __init__(self, runs: int, stream: TextIO = sys.stderr) -> None:
        super().__init__(stream)
        self._runs = runs
        self._index = 0
        self._label = ""  # of the run that goes on
        self._labels: dict[str, str] = {}  # of all that were started, by their names
        self._started_s = self._next_line_s = 0.0
        self._shown_step: int | None = None  # 0: before the first one

    def expect(self, runs: int) -> None:
        """Count so many further runs."""
        self._runs += runs

    def _begin(self, spec: RunSpec) -> str:
        self._index += 1
        run = f"{spec.variant}/{spec.mode}/r{spec.repeat}"
        return f"{spec.stage} {spec.scale} [{self._index}/{self._runs}] {run}"

    def started(self, spec: RunSpec) -> None:
        self._label = self._labels[spec.name] = self._begin(spec)
        self._started_s = time.monotonic()
        self._shown_step = None
        self._next_line_s = self._started_s + LINE_EVERY_S
        if self.is_terminal:
            self.status(f"{self._label} starting")
        else:
            self.say(f"{self._label}: started")

    def follow(self, path: Path, expected: int | None, left_at_most_s: float) -> None:
        """Show the progress in a file."""
        progress = None
        with contextlib.suppress(OSError, ValueError):  # a run does not fail because it cannot be shown
            progress = read_progress(path)
        text, step = self._state(progress, expected, left_at_most_s), progress.step if progress else 0
        if self.is_terminal:
            self.status(f"{self._label} {text}")
        # The first steps are shown at once: a run may end in 10 s.
        elif step != self._shown_step and (time.monotonic() >= self._next_line_s or (step and not self._shown_step)):
            self._shown_step = step
            now_s = time.monotonic()
            self._next_line_s = now_s + max(LINE_EVERY_S, LINE_EVERY_FRACTION * (now_s - self._started_s))
            self.say(f"{self._label}: {text}")

    def _state(self, progress: Progress | None, expected: int | None, left_at_most_s: float) -> str:
        return state(progress, expected, left_at_most_s)

    def ending(self, why: str) -> None:
        """Say why the run is ended, before its processes are."""
        self.status("")
        self.say(f"{self._label}: {why}; the run is being ended")

    def ended(self, record: Record) -> None:
        """Say how a run ended; the next one may have begun."""
        self.status("")
        words = end_of_link(record) if record.spec.is_link else outcome(record)
        self.say(f"{self._labels[record.spec.name]}: {words}")

    def reused(self, spec: RunSpec) -> None:
        self.say(f"{self._begin(spec)}: finished earlier, kept")


class LinkConsole(RunConsole):
    """The progress of one link of a chain."""

    def __init__(
        self,
        number: int,
        promised: float | None,
        used: Callable[[float], str],
        is_measured: bool,
        stream: TextIO = sys.stderr,
    ) -> None:
        """promised: samples/s. used: the hours of the chain in words, by the seconds that this link has held."""
        super().__init__(1, stream)
        self._number, self._promised, self._used, self._is_measured = number, promised, used, is_measured
        self._begun_s = time.monotonic()

    def _begin(self, spec: RunSpec) -> str:
        return f"{spec.stage} {spec.scale} link {self._number}"

    def _state(self, progress: Progress | None, expected: int | None, left_at_most_s: float) -> str:
        """Return ``step 656, 1,038 samples/s (93 % of the ladder's), 0.12 of 0.20 GPU h``."""
        used = self._used(time.monotonic() - self._begun_s)
        if progress is None:
            return f"starting, {used}" if self._is_measured else f"step not known, {used}"
        share = of_promised(progress.samples_per_s, self._promised)
        return f"{state(progress, None)}{share}, {used}"


def of_promised(rate: float | None, promised: float | None) -> str:
    """Return `` (93 % of the ladder's)``; empty if one of the rates is not known."""
    return f" ({percent(rate / promised)} of the ladder's)" if rate is not None and promised else ""


def end_of_link(record: Record) -> str:
    """Return one line on how a link ended: no failure is its time limit, exit code 75, or a last link that is short."""
    kind = record.failure.kind if record.failure else "complete"
    if kind == "too few steps":  # what was left of the training
        kind = "complete"
    if kind not in ("saved state", "time limit", "complete"):
        return outcome(record)
    return good_end(kind, max((rank.steps for rank in record.ranks), default=None))


def good_end(kind: Literal["saved state", "time limit", "complete"], steps: int | None) -> str:
    """Return one line on a link that ended as a link may. steps: None for unknown."""
    after = "" if steps is None else f" after {steps:,} step{'s' * (steps != 1)}"
    return {
        "saved state": f"saved its state{after} (exit code {os.EX_TEMPFAIL})",
        "time limit": f"its time was up{after}",
        "complete": f"the script ended with exit code 0{after}",
    }[kind]


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
    return f"FAILED: {failure.in_words}"
