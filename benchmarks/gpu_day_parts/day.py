"""Run the parts of a day one after the other, each in its own process, within a time budget."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil
from ddp_ladder.common.files import read_json

Status = Literal["done", "failed", "out of time", "skipped", "left out"]
"""skipped: not started. left out: the part itself found nothing to measure here."""

GRACE_S = 10.0  # after SIGTERM: Snakemake cancels its jobs
PROGRESS_EVERY_S = 30.0
LONGEST_LINE = 160  # characters


@dataclass(frozen=True)
class Part:
    """A command that measures, and its times.

    argv: arguments of Python; ``--figures FILE`` is added, the file for its results.
    estimate_s: its time on a large GPU; with less time left it is not started.
    limit_s: its time limit.
    needs: packages without which it is not started.
    """

    name: str
    title: str
    argv: tuple[str, ...]
    estimate_s: float
    limit_s: float
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The outcome of a part."""

    name: str
    title: str
    status: Status
    why: str | None
    wall_s: float
    estimate_s: float
    limit_s: float
    headline: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    checks: Sequence[Mapping[str, Any]] = ()
    impossible: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def missed(self) -> int:
        """Targets that were not met."""
        return sum(check["met"] is False for check in self.checks)

    @property
    def is_good(self) -> bool:
        """True if the part ended well and missed no target."""
        return self.status in ("done", "left out") and not self.missed

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Day:
    """Time, log and progress of a day."""

    def __init__(self, budget_s: float, log: Path, say: Callable[[str], None]) -> None:
        """log: what the parts print is appended here."""
        self.budget_s = budget_s
        self._began_s = time.monotonic()
        self.log = log
        self._say = say

    @property
    def wall_s(self) -> float:
        """Seconds since the day began."""
        return time.monotonic() - self._began_s

    @property
    def left_s(self) -> float:
        return self.budget_s - self.wall_s

    def run(self, part: Part, python: str, figures: Path, missing: Sequence[str] = ()) -> Outcome:
        """Run one part, or skip it with a reason; return the outcome.

        figures: the file that the part writes. missing: packages that this machine lacks.
        Raises KeyboardInterrupt if the day is interrupted, once the part has been ended.
        """
        lacks = [name for name in part.needs if name in missing]
        if lacks:
            return self._skipped(part, f"needs {', '.join(lacks)}: see --wheels")
        if self.left_s < part.estimate_s:
            return self._skipped(
                part, f"takes about {part.estimate_s:.0f} s, and {max(0, self.left_s):.0f} s of the budget are left"
            )
        limit_s = min(part.limit_s, self.left_s)
        self._say(f"{self._clock()} {part.name}: {part.title}; about {part.estimate_s:.0f} s, at most {limit_s:.0f} s")
        began_s = time.monotonic()
        begin = self._begin_log(part)
        # Unbuffered, so that the log has the lines of both streams in their order.
        code = self._watch(part, [python, "-u", *part.argv, "--figures", str(figures)], limit_s)
        results = _read(figures)
        last = _last_line(self.log, begin)
        status, why = _judge(code, results, limit_s, last)
        wall_s = time.monotonic() - began_s
        outcome = Outcome(part.name, part.title, status, why, wall_s, part.estimate_s, limit_s, **_kept(results))
        self._report(outcome)
        return outcome

    def interrupted(self, parts: Sequence[Part]) -> list[Outcome]:
        """Return the outcomes of the parts that an interrupted day has not finished."""
        return [self._skipped(part, "the day was interrupted") for part in parts]

    def _skipped(self, part: Part, why: str) -> Outcome:
        outcome = Outcome(part.name, part.title, "skipped", why, 0.0, part.estimate_s, part.limit_s)
        self._report(outcome)
        return outcome

    def _report(self, outcome: Outcome) -> None:
        missed = f"; {outcome.missed} of {len(outcome.checks)} targets missed" if outcome.missed else ""
        what = outcome.why or outcome.headline
        details = f": {what}" if what else ""
        self._say(f"{self._clock()} {outcome.name}: {outcome.status} after {outcome.wall_s:.0f} s{missed}{details}")

    def _clock(self) -> str:
        return f"[{self.wall_s:3.0f} of {self.budget_s:.0f} s]"

    def _begin_log(self, part: Part) -> int:
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"\n===== {part.name}: {part.title}\n")
            return log.tell()

    def _watch(self, part: Part, argv: Sequence[str], limit_s: float) -> int | None:
        """Run the part; return its exit code, or None if the time limit ended it. Its child processes are ended too."""
        until_s = time.monotonic() + limit_s
        before = set(psutil.Process().children(recursive=True))
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            while (left_s := until_s - time.monotonic()) > 0:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(min(PROGRESS_EVERY_S, left_s))
                self._say(f"{self._clock()} {part.name}: {limit_s - until_s + time.monotonic():.0f} s so far")
            return None
        finally:
            _end(process, before)


def _end(process: subprocess.Popen[bytes], before: set[psutil.Process]) -> None:
    """End a part that still runs, and then all processes that it left behind."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    process.poll()
    left = [child for child in psutil.Process().children(recursive=True) if child not in before]
    for child in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(left, GRACE_S)
    process.wait()


def _judge(code: int | None, results: Mapping[str, Any], limit_s: float, last: str) -> tuple[Status, str | None]:
    if code is None:
        return "out of time", f"ended after {limit_s:.0f} s"
    if code != 0:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        return "failed", f"{how}: {last}" if last else how
    if results.get("left_out"):
        return "left out", results["left_out"]
    return "done", None


def _read(figures: Path) -> dict[str, Any]:
    try:
        results: dict[str, Any] = read_json(figures)
    except FileNotFoundError:
        return {}
    return results


def _kept(results: Mapping[str, Any]) -> dict[str, Any]:
    return {name: results[name] for name in ("headline", "figures", "checks", "impossible", "notes") if name in results}


def _last_line(log: Path, begin: int) -> str:
    """Return the last line that a part printed; after an exception it names the error."""
    lines = log.read_bytes()[begin:].decode(errors="replace").split("\n")
    return next((line.strip()[:LONGEST_LINE] for line in reversed(lines) if line.strip()), "")
