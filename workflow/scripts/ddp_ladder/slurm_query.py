"""Questions to Slurm: asked once, or by a job about itself again and again while the controller does not answer."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from ddp_ladder.messages import Problem, UserError
from ddp_ladder.slurm_environment import question_environment

ANSWER_WITHIN_S = 60
PATIENCE_S = 300.0  # what a restart of the controller may take
AGAIN_S = 2.0
NO_COMMAND = os.strerror(errno.ENOENT)


class SlurmError(Exception):
    """A command of Slurm failed; the text is its message."""


def run_command(argv: Sequence[str]) -> str:
    """Output of a command. Raises SlurmError with its own message."""
    try:
        done = subprocess.run(
            argv,
            env=question_environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_WITHIN_S,
            check=False,
        )
    except OSError as error:
        raise SlurmError(f"{argv[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{' '.join(argv)}: no answer within {ANSWER_WITHIN_S} s") from error
    if done.returncode:
        raise SlurmError((done.stderr or done.stdout).strip() or f"{argv[0]} ended with {done.returncode}")
    return done.stdout


def answer(job_id: str, argv: Sequence[str]) -> str:
    """What a command prints. Raises UserError when there is no such job, or no answer for too long."""
    deadline_s = time.monotonic() + PATIENCE_S
    told = False
    while True:
        try:
            return run_command(argv)
        except SlurmError as error:
            said = str(error)
        if unknown(said) or NO_COMMAND in said or time.monotonic() > deadline_s:
            raise UserError(no_job(job_id, said))
        if not told:
            print(f"Slurm does not answer ({said}); asking again for {PATIENCE_S:.0f} s", file=sys.stderr, flush=True)
            told = True
        time.sleep(AGAIN_S)


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
