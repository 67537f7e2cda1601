"""Questions to Slurm: asked once, or by a job about itself again and again while the controller does not answer.

None waits without end: a command that hangs is ended and named, with how long it was waited for.
"""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from ddp_ladder.messages import Problem, UserError, printable
from ddp_ladder.slurm_environment import question_environment

ANSWER_WITHIN_S = 60.0
SHORTEST_ANSWER_S = 2.0  # also where no time is left: a healthy controller takes less
PATIENCE_S = 300.0  # what a restart of the controller may take
AGAIN_S = 2.0
NO_COMMAND = os.strerror(errno.ENOENT)


class SlurmError(Exception):
    """A command of Slurm failed; the text is its message."""


class NoAnswer(SlurmError):
    """A command of Slurm did not end in time."""


def run_command(argv: Sequence[str], within_s: float = ANSWER_WITHIN_S) -> str:
    """Output of a command. Raises SlurmError with its own message, or NoAnswer."""
    try:
        done = subprocess.run(
            argv,
            env=question_environment(os.environ),
            stdin=subprocess.DEVNULL,
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
    if done.returncode:
        raise SlurmError(printable(done.stderr or done.stdout).strip() or f"{argv[0]} ended with {done.returncode}")
    return printable(done.stdout)


def answer(job_id: str, argv: Sequence[str], until_s: float = math.inf) -> str:
    """What a command prints. Raises UserError when there is no such job, or no answer for too long.

    until_s: on the monotonic clock, when whoever asks has no more time to wait.
    """
    patience_s = max(0.0, min(PATIENCE_S, until_s - time.monotonic()))
    deadline_s = time.monotonic() + patience_s
    told = False
    while True:
        left_s = deadline_s - time.monotonic()
        try:
            return run_command(argv, min(ANSWER_WITHIN_S, max(SHORTEST_ANSWER_S, left_s)))
        except SlurmError as error:
            said = str(error)
        if unknown(said) or NO_COMMAND in said or time.monotonic() >= deadline_s:
            raise UserError(no_job(job_id, said))
        if not told:
            print(f"Slurm does not answer ({said}); asking again for {patience_s:.0f} s", file=sys.stderr, flush=True)
            told = True
        time.sleep(min(AGAIN_S, max(0.0, deadline_s - time.monotonic())))


def unknown(errors: str) -> bool:
    """Whether a command failed because the controller knows no such job."""
    return "Invalid job id" in errors


def silent(errors: str) -> bool:
    """Whether a command failed because the controller did not answer."""
    return "Unable to contact slurm controller" in errors


def no_job(job_id: str, found: str) -> Problem:
    """What to tell where Slurm does not know an allocation."""
    return Problem(
        where=f"Slurm job {job_id}",
        what="Slurm does not tell what this allocation has",
        found=found,
        next="look at it with `squeue --me`; if it has ended, ask for a new one with salloc or sbatch",
    )
