"""Submit a scale's job exactly once, whatever sbatch answers: a job whose id was lost is found by its name.

After "Socket timed out" sbatch may still have submitted the job, and a slow controller shows it late. Before each try,
and after each failed one, Slurm is asked for the job by name; sbatch is tried again only if the queue is without it.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.common.formats import duration
from ddp_ladder.slurm.job_names import jobs_by_name
from ddp_ladder.slurm.query import SlurmError, Unreadable, run_command, undecided
from ddp_ladder.slurm.states import cancel

PAUSES_S = (10.0, 20.0, 40.0, 80.0, 160.0)  # before sbatch is tried again, and after its last try
LOOK_EVERY_S = 3.0  # for the job, in a pause
SUBMIT_WITHIN_S = 180.0  # Slurm's own patience, MessageTimeout, is up to 100 s at some sites
STOP_WITHIN_S = 10.0  # for the job of a try that Ctrl-C ended, which may have been submitted
_JOB_ID = re.compile(r"^(\d+)(?:;\S*)?$", re.MULTILINE)  # of --parsable; a cluster's name may follow


class NotSubmitted(Exception):
    """The job is not submitted; the text says why, ``next`` what to do."""

    def __init__(self, why: str, next_step: str) -> None:
        super().__init__(why)
        self.next = next_step


class Stopped(Exception):
    """The start was ended in the meantime; its submitted jobs are cancelled."""


@dataclass(frozen=True)
class Submission:
    """One call of sbatch: its arguments, with --parsable and --job-name, and the script that it reads."""

    label: str  # begins each line for the user
    scale: str
    name: str
    argv: Sequence[str]
    script: str


class Submitter:
    """The submission of the jobs of one start, from several threads. say: prints a line for the user."""

    def __init__(self, results: Path, say: Callable[[str], None]) -> None:
        self._results = results
        self._say = say
        self._lock = threading.Lock()
        self._stopped_s: float | None = None
        self._jobs: set[str] = set()

    def stop(self) -> set[str]:
        """Refuse further submissions; return the jobs that were submitted and have not ended."""
        with self._lock:
            self._stopped_s = time.monotonic()
            return set(self._jobs)

    def over(self, job_id: str) -> None:
        """Record that a job has ended."""
        with self._lock:
            self._jobs.discard(job_id)

    def submit(self, wanted: Submission) -> str:
        """Submit the job and return its id. Raises NotSubmitted, or Stopped."""
        job_id = self._submit(wanted)
        with self._lock:
            if self._stopped_s is None:
                self._jobs.add(job_id)
                return job_id
        self._say(f"{wanted.label}: {cancel([job_id])}")
        raise Stopped

    def _submit(self, wanted: Submission) -> str:
        failed: SlurmError | None = None
        for turn, pause_s in enumerate((0.0, *PAUSES_S)):
            refused = failed is not None and not isinstance(failed, Unreadable) and not undecided(str(failed))
            try:
                found = self._look(wanted, 0.0 if refused else pause_s)
            except SlurmError as silent:
                if self._stopped_s is not None:
                    break
                if not refused:
                    self._say(f"{wanted.label}: Slurm does not show the queue ({silent}); asking again")
                    continue  # a second job may be one too many
                found = None
            if found:
                self._say(f"{wanted.label}: job {found} is in the queue all the same")
                return found
            if refused:
                raise NotSubmitted(str(failed), "correct what sbatch names: `slurm` and `node` in cluster.yaml")
            if self._stopped_s is not None:
                raise Stopped
            if turn == len(PAUSES_S) or isinstance(failed, Unreadable):
                continue
            try:
                return self._sbatch(wanted, again=failed is not None)
            except SlurmError as error:
                failed = error
            if undecided(str(failed)) or isinstance(failed, Unreadable):
                self._say(f"{wanted.label}: {failed}; looking whether it was submitted")
        raise NotSubmitted(
            f"{failed or 'squeue does not answer'}; given up after {duration(sum(PAUSES_S))}",
            f"see that `squeue --name={wanted.name}` knows no job; then start snakemake again",
        )

    def _sbatch(self, wanted: Submission, again: bool) -> str:
        printed = run_command(wanted.argv, SUBMIT_WITHIN_S, wanted.script)
        ids = _JOB_ID.findall(printed)
        if len(ids) != 1:
            raise Unreadable("sbatch", printed)
        if again:
            with contextlib.suppress(SlurmError):  # the first try may have submitted it late
                return self._look(wanted, 0.0) or ids[0]
        return str(ids[0])

    def _look(self, wanted: Submission, for_s: float) -> str | None:
        """Return the job with this name; None if the queue is without it until the end. Cancels all but the first.

        Raises SlurmError if Slurm still does not answer at the end, and NotSubmitted for a job of another start.
        """
        until_s = time.monotonic() + for_s
        while True:
            try:
                own = self._jobs_in_queue(wanted)
            except SlurmError:
                if self._is_time(until_s):
                    raise
            else:
                if own[1:]:
                    self._say(f"{wanted.label}: {cancel(own[1:])}")
                if own or self._is_time(until_s):
                    return next(iter(own), None)
            time.sleep(min(LOOK_EVERY_S, max(0.1, until_s - time.monotonic())))

    def _is_time(self, until_s: float) -> bool:
        stop_s = until_s if self._stopped_s is None else self._stopped_s + STOP_WITHIN_S
        return time.monotonic() >= min(until_s, stop_s)

    def _jobs_in_queue(self, wanted: Submission) -> list[str]:
        jobs = [job for job in jobs_by_name(self._results) if job.scale == wanted.scale]
        for job in jobs:
            if job.name != wanted.name and job.state.phase != "ended":
                why = f"job {job.id} of another start is not over ({job.state.state}), and is of the same runs"
                raise NotSubmitted(why, f"wait for it, or end it with `scancel {job.id}`; then start snakemake again")
        return [job.id for job in jobs if job.name == wanted.name]
