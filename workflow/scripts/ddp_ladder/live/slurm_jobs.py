"""Questions to Slurm on the ladder's jobs: one squeue for all of them, at most every 10 s, in a thread of its own.

Jobs are asked for by their ids, so they may be anyone's. The accounting is not asked.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from ddp_ladder.live.state import QueuedJob, SlurmAnswer
from ddp_ladder.slurm.allocation import parse_time_left
from ddp_ladder.slurm.query import SlurmError, squeue, unknown
from ddp_ladder.slurm.states import job_state

ASK_EVERY_S = 10.0
SILENT_EVERY_S = (20.0, 40.0, 60.0)  # after the first, second, ... question without an answer
ANSWER_WITHIN_S = 10.0
NO_COMMAND = "squeue is not on this machine: the states of the jobs are not shown"
_FIELDS = "iTSNMlr"

Ask = Callable[[Collection[str]], Mapping[str, QueuedJob]]


def ask_squeue(job_ids: Collection[str]) -> dict[str, QueuedJob]:
    """Return the jobs that the controller knows. Raises SlurmError if it does not answer."""
    try:
        rows = squeue(_FIELDS, "--states=all", f"--jobs={','.join(sorted(job_ids))}", within_s=ANSWER_WITHIN_S)
    except SlurmError as error:
        if unknown(str(error)):  # only if a single job was asked for
            return {}
        raise
    return {
        job.strip(): QueuedJob(job_state(state, start, nodes, reason), parse_time_left(spent), parse_time_left(limit))
        for job, state, start, nodes, spent, limit, reason in rows
    }


class SlurmJobs:
    """Slurm's answers. ``look`` returns at once, with the last answer."""

    def __init__(
        self,
        ask: Ask = ask_squeue,
        clock: Callable[[], float] = time.monotonic,
        has_command: Callable[[], bool] = lambda: shutil.which("squeue") is not None,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._has_command = has_command
        self._due_s = 0.0
        self._silent = 0
        self._question: threading.Thread | None = None
        self._answer = SlurmAnswer()

    def look(self, job_ids: Collection[str]) -> SlurmAnswer:
        """Return the last answer, and ask for the next one if that is due."""
        if not job_ids:
            return SlurmAnswer()
        if not self._has_command():
            return SlurmAnswer(problem=NO_COMMAND)
        is_asking = self._question is not None and self._question.is_alive()
        if not is_asking and self._clock() >= self._due_s:
            self._due_s = self._clock() + ASK_EVERY_S
            self._question = threading.Thread(target=self._fetch, args=(frozenset(job_ids),), daemon=True)
            self._question.start()
        return self._answer

    def wait(self) -> None:
        """Wait for the question that is under way; it has a time limit."""
        if self._question is not None:
            self._question.join()

    def _fetch(self, job_ids: Collection[str]) -> None:
        try:
            jobs = self._ask(job_ids)
        except SlurmError as error:
            pause_s = SILENT_EVERY_S[min(self._silent, len(SILENT_EVERY_S) - 1)]
            self._silent += 1
            self._due_s = self._clock() + pause_s
            why = " ".join(str(error).split())
            self._answer = replace(
                self._answer, problem=f"Slurm does not answer ({why}); asked again in {pause_s:.0f} s"
            )
            return
        self._silent = 0
        self._answer = SlurmAnswer(jobs, time.time())
