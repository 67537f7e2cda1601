"""Queries to Slurm: asked once, or by a job about itself again and again while the controller does not answer.

Every query has a time limit: a command that hangs is ended, and the error names it and the limit.
"""

from __future__ import annotations

import errno
import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from ddp_ladder.common.messages import Problem, UserError, notify, printable
from ddp_ladder.slurm.environment import question_environment

T = TypeVar("T")

ANSWER_WITHIN_S = 60.0
SHORTEST_ANSWER_S = 2.0  # also if no time is left: a healthy controller takes less
PATIENCE_S = 300.0  # a restart of the controller may take this long
AGAIN_S = 2.0
NO_COMMAND = os.strerror(errno.ENOENT)
WAS_ENDED = "was ended by"
LONGEST_QUOTE = 100
MARK = "ddp-ladder"  # begins each of squeue's own lines: a site's wrapper may print others

# Slurm's messages while its controller is busy, down or changing over. They are no refusal: it may have obeyed.
_UNDECIDED = re.compile(
    r"Socket timed out|Unable to contact slurm controller|Zero Bytes were transmitted|Message (send|receive) failure"
    r"|Communication (connection|shutdown) failure|standby mode|[Tt]emporarily|try again|no answer within"
    f"|{WAS_ENDED}"
)


class SlurmError(Exception):
    """A command of Slurm failed; the text is its message."""


class NoAnswer(SlurmError):
    """A command of Slurm did not end in time."""


class Unreadable(SlurmError):
    """A command of Slurm ended well, but its answer is not in its output; the text quotes that."""

    def __init__(self, command: str, printed: str) -> None:
        first = next((line.strip() for line in printed.splitlines() if line.strip()), "")
        what = f"what cannot be read: {first[:LONGEST_QUOTE]!r}" if first else "nothing"
        super().__init__(f"{command} printed {what}")


def run_command(argv: Sequence[str], within_s: float | None = None, script: str = "", with_errors: bool = False) -> str:
    """Return the output of a command, which reads ``script``. Raises SlurmError with its own message, or NoAnswer.

    within_s: None for ANSWER_WITHIN_S. with_errors: return its standard error too.
    """
    within_s = ANSWER_WITHIN_S if within_s is None else within_s
    try:
        done = subprocess.run(
            argv,
            env=question_environment(os.environ),
            input=script,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=within_s,
            check=False,
        )
    except OSError as error:
        raise SlurmError(f"{argv[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise NoAnswer(f"{' '.join(argv)}: no answer within {within_s:.3g} s") from error
    if done.returncode < 0:
        raise SlurmError(f"{argv[0]} {WAS_ENDED} {signal.Signals(-done.returncode).name}")
    if done.returncode:
        raise SlurmError(printable(done.stderr or done.stdout).strip() or f"{argv[0]} ended with {done.returncode}")
    return printable(done.stdout + done.stderr if with_errors else done.stdout)


def answer(job_id: str, ask: Callable[[float], T], until_s: float = math.inf) -> T:
    """Return Slurm's answer on the calling job. Raises UserError if Slurm does not know it, or does not answer.

    ask: the query, a function of its time limit in seconds.
    until_s: on the monotonic clock, when the caller's time to wait is up.
    """
    patience_s = max(0.0, min(PATIENCE_S, until_s - time.monotonic()))
    deadline_s = time.monotonic() + patience_s
    is_announced = False
    while True:
        left_s = deadline_s - time.monotonic()
        try:
            return ask(min(ANSWER_WITHIN_S, max(SHORTEST_ANSWER_S, left_s)))
        except SlurmError as error:
            message = str(error)
        if unknown(message) or NO_COMMAND in message or time.monotonic() >= deadline_s:
            raise UserError(no_job(job_id, message))
        if not is_announced:
            again = f"asking again for {patience_s:.0f} s"
            notify(f"Slurm does not answer ({message}); {again}")
            is_announced = True
        time.sleep(min(AGAIN_S, max(0.0, deadline_s - time.monotonic())))


def job_field(job_id: str, field: str, until_s: float = math.inf) -> str:
    """Return one field of squeue on the calling job; empty for a job that has ended. Raises as answer does."""
    rows = answer(job_id, lambda within_s: squeue(field, f"--jobs={job_id}", within_s=within_s), until_s)
    return rows[0][0].strip() if rows else ""


def unknown(errors: str) -> bool:
    """Return True if a command failed because the controller knows no such job."""
    return "Invalid job id" in errors


def unanswered(errors: str) -> bool:
    """Return True if a command failed because the controller did not answer."""
    return "Unable to contact slurm controller" in errors


def undecided(errors: str) -> bool:
    """Return True if a command failed without a refusal: it can be tried again, and may have been obeyed."""
    return _UNDECIDED.search(errors) is not None


def squeue(fields: str, *options: str, within_s: float | None = None) -> list[list[str]]:
    """Return squeue's rows, one per job or job step.

    fields: letters of its --format, such as ``iT``; the last one may hold a ``|``. Raises SlurmError, Unreadable also
    if one of its lines is torn. The header proves an answer, also an empty one.
    """
    form = "|".join((MARK, *(f"%{letter}" for letter in fields)))
    printed = run_command(["squeue", *options, f"--format={form}"], within_s)
    rows = [line.split("|", len(fields))[1:] for line in printed.splitlines() if line.startswith(f"{MARK}|")]
    if not rows or any(len(row) != len(fields) for row in rows):
        raise Unreadable("squeue", printed)
    return rows[1:]


def no_job(job_id: str, found: str) -> Problem:
    """Return the problem of an allocation that Slurm does not know."""
    return Problem(
        where=f"Slurm job {job_id}",
        what="Slurm does not show the nodes of this allocation",
        found=found,
        next="look at it with `squeue --me`; if it has ended, ask for a new one with salloc or sbatch",
    )
