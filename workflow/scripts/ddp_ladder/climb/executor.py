"""The Slurm executor of the ladder's jobs: a subclass of the plugin's executor. What it replaces, and a test of each:

- submission: the plugin takes every failure of sbatch for a refusal, also "Socket timed out", after which the job may
  be in the queue (tests/slurm/test_lost_answers.py), and it guesses an account and a partition if there is none;
- the check of active jobs: the plugin asks less and less often, in the end every three minutes, waits for ever for a
  job that was preempted, and takes a job of unknown state for a good one (tests/slurm/test_job_ends.py);
- cancelling: at Ctrl-C the plugin forgets jobs that are being submitted (tests/slurm/test_starts_on_slurm.py);
- the environment: inside a job's shell the plugin removes SLURM_CONF, and keeps SBATCH_TIMELIMIT and the like
  (tests/slurm/test_callers_environment.py).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from ddp_ladder.accounting.jobs import update_or_warn
from ddp_ladder.climb.to_do import another_job
from ddp_ladder.climb.watch import LOOK_EVERY_S, JobWatch
from ddp_ladder.common.files import NotWritten, shown_path
from ddp_ladder.common.formats import dotted
from ddp_ladder.common.messages import Problem, UserError, notify
from ddp_ladder.plan.file import read_plan
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.records.run_records import RunRecords
from ddp_ladder.run.progress import JobConsole
from ddp_ladder.settings.terms import Scale
from ddp_ladder.slurm.environment import set_aside
from ddp_ladder.slurm.job_end import NOT_SUBMITTED, SUBMITTED, JobEnd, job_end_file, write_job_end
from ddp_ladder.slurm.job_names import new_job_name
from ddp_ladder.slurm.scale_lock import signs_of_life
from ddp_ladder.slurm.states import ask, cancel
from ddp_ladder.slurm.steps import sbatch_options
from ddp_ladder.slurm.submit import NotSubmitted, Stopped, Submission, Submitter

DISTRIBUTION = "snakemake-executor-plugin-slurm"
OLDEST, BELOW = (2, 8), (3,)  # as in requirements.txt
INSTALL = "run `make setup` once, or pip install -r requirements.txt"
# The last two are private: they report to Snakemake from the thread that submits a job.
METHODS = (
    "run_job",
    "check_active_jobs",
    "cancel_jobs",
    "_report_job_submission_threadsafe",
    "_report_job_error_threadsafe",
)
NOT_RECORDED = "Its end is not recorded"


def problem_of(executor: Any, names: Sequence[str] = METHODS) -> Problem | None:
    """Return the problem with an executor that lacks one of these names; None if it has all of them."""
    missing = [name for name in names if not hasattr(executor, name)]
    if not missing:
        return None
    return Problem(
        DISTRIBUTION,
        f"its executor has no {', '.join(missing)}, which ddp-ladder builds on",
        allowed=f"{dotted(OLDEST)} or newer, below {dotted(BELOW)}",
        next=INSTALL,
    )


def ladder_executor(
    plugin: type[Any], results: Path, job_of: Callable[[str], ScaleJob], rules: Collection[str]
) -> type[Any]:
    """Return a subclass of the plugin's executor for the jobs of these rules; the plugin handles those of other rules.

    job_of: the job of a scale. Raises UserError if the plugin lacks a method that is overridden or called.
    """
    if problem := problem_of(plugin):
        raise UserError(problem)
    settings = {"results": results, "job_of": staticmethod(job_of), "rules": frozenset(rules)}
    return type("LadderExecutor", (LadderJobs, plugin), settings)


class LadderJobs:
    """The overriding methods. Every other method is the plugin's, the next base class."""

    results: ClassVar[Path]
    job_of: ClassVar[Callable[[str], ScaleJob]]
    rules: ClassVar[Collection[str]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if notice := set_aside(os.environ):
            notify(notice)
        self._console = JobConsole()
        self._watch = JobWatch(ask, cancel, self._console)
        self._submitter = Submitter(self.results, self._console.say)
        self._others_due_s = 0.0
        plugin: Any = super()
        plugin.__init__(*args, **kwargs)
        self.array_jobs: set[str] = set()  # no --slurm-array-jobs: an array asks for each scale what the first needs

    def _is_own(self, job: Any) -> bool:
        return not job.is_group() and job.rule.name in self.rules

    def run_job(self: Any, job: Any) -> None:
        """Submit the job, in a thread of the plugin. Every outcome is reported, or Snakemake waits for ever."""
        if not self._is_own(job):
            super().run_job(job)  # type: ignore[misc]
            return
        info, stage = SubmittedJobInfo(job), self.job_of(job.wildcards.scale).stage
        try:
            wanted, logs = _submission(self, job)
            info.external_jobid = self._submitter.submit(wanted)
        except Stopped:
            return
        except NotSubmitted as error:
            end = JobEnd("", stage, wanted.scale, NOT_SUBMITTED, "", why=str(error), next=error.next)
            self._console.say(f"{stage} {wanted.scale}: {end.in_words}")
            self._report_job_error_threadsafe(info, _message(end, self.results))
            return
        except Exception as error:
            # Of the plugin or of a disk: it ends this job, and those that are in the queue are followed to their ends.
            self._report_job_error_threadsafe(info, f"the job cannot be submitted: {error}")
            return
        log = logs / f"{info.external_jobid}.log"
        info.aux = {"slurm_logfile": log}
        noted = _record(JobEnd(info.external_jobid, stage, wanted.scale, SUBMITTED, shown_path(log)), self.results)
        if noted.startswith(NOT_RECORDED):  # Slurm knows it by its name
            self._console.say(f"job {info.external_jobid} is followed. {noted}")
        self._report_job_submission_threadsafe(info)

    async def check_active_jobs(self: Any, active_jobs: Sequence[Any]) -> AsyncIterator[Any]:
        """Yield the jobs that have not ended, and report the others."""
        own = [info for info in active_jobs if self._is_own(info.job)]
        async for info in self._check_others([info for info in active_jobs if info not in own]):
            yield info
        self.next_seconds_between_status_checks = LOOK_EVERY_S
        for info in own:
            self._follow(info)
        try:
            ends = {end.job_id: end for end in self._watch.look()}
        except Exception:
            # Snakemake now ends without cancelling the jobs.
            left = " ".join(sorted(self._submitter.stop()))
            self._console.say(f"still in the queue: {left}; to end them: scancel with these ids")
            raise
        for info in own:
            end = ends.get(info.external_jobid)
            if end is None:
                yield info
            else:
                self._submitter.over(end.job_id)
                self._report(info, end)
        if ends:
            self._account()

    def _follow(self: Any, info: Any) -> None:
        if not self._watch.knows(info.external_jobid):
            scale, log = info.job.wildcards.scale, Path(shown_path(info.aux["slurm_logfile"]))
            signs = partial(signs_of_life, self.results, scale, log)
            self._watch.add(info.external_jobid, self.job_of(scale).stage, scale, log, signs)

    async def _check_others(self: Any, others: Sequence[Any]) -> AsyncIterator[Any]:
        """Check jobs of other rules, as often as the plugin would."""
        if not others or time.monotonic() < self._others_due_s:
            for info in others:
                yield info
            return
        async for info in super().check_active_jobs(others):  # type: ignore[misc]
            yield info
        self._others_due_s = time.monotonic() + self.next_seconds_between_status_checks

    def _report(self: Any, info: Any, end: JobEnd) -> None:
        if end.ok:
            with contextlib.suppress(OSError):
                job_end_file(self.results, end.scale).unlink()
            if not self._goes_on(info, end):
                self.report_job_success(info)
        else:
            self.report_job_error(info, msg=_message(end, self.results), aux_logs=[end.log])

    def _goes_on(self: Any, info: Any, end: JobEnd) -> bool:
        """Submit the next job of a scale that several are to measure; return False if it wants none."""
        plan_file = self.results / "plan.json"
        try:
            plan, scale = read_plan(plan_file), Scale.parse(end.scale)
            number = another_job(plan, RunRecords(self.results), scale, end.job_id)
        except (UserError, OSError, ValueError) as error:
            self._console.say(f"warning: no other job of {end.scale}: {error}")
            return False
        if number is None:
            return False
        jobs = plan.job(scale).jobs
        self._console.say(f"{end.stage} {end.scale}: job {number - 1} of {jobs} done; job {number} is submitted")
        with contextlib.suppress(RuntimeError):  # after Ctrl-C no job is submitted any more
            self._job_submission_executor.submit(self.run_job, info.job)
        return True

    def _account(self: Any) -> None:
        """Write what the jobs used. Slurm forgets them soon, and nothing that fails here may end the climb."""
        try:
            _, warnings = update_or_warn(self.results)
        except Exception as error:
            warnings = (f"the accounting of the jobs is incomplete: {error}",)
        for warning in warnings:
            self._console.say(f"warning: {warning}")

    def cancel_jobs(self: Any, active_jobs: Sequence[Any]) -> None:
        """Cancel every job that was submitted, or is being submitted."""
        submitted = self._submitter.stop()
        self._job_submission_executor.shutdown(wait=True)
        own = [info for info in active_jobs if self._is_own(info.job)]
        self._watch.cancel(submitted.union(info.external_jobid for info in own if info.external_jobid))
        if others := [info for info in active_jobs if info not in own]:
            super().cancel_jobs(others)  # type: ignore[misc]


def _submission(executor: Any, job: Any) -> tuple[Submission, Path]:
    """Return the call of sbatch for a job of Snakemake, and the directory of its logs."""
    scale = job.wildcards.scale
    planned = executor.job_of(scale)
    logs = executor.slurm_logdir / f"rule_{job.name}" / scale
    logs.mkdir(parents=True, exist_ok=True)
    name = new_job_name(executor.results, scale)
    own = {
        "job-name": name,
        "chdir": str(executor.workflow.workdir_init),
        "output": str(logs).replace("%", "%%") + "/%j.log",
        "export": "ALL",
    }
    argv = ["sbatch", "--parsable", *sbatch_options(planned, own)]
    script = f"#!/bin/sh\n{executor.format_job_exec(job)}"
    return Submission(f"{planned.stage} {scale}", scale, name, argv, script), logs


def _message(end: JobEnd, results: Path) -> str:
    return f"{end.in_words}. Next: {end.next}. {_record(end, results)}. "


def _record(end: JobEnd, results: Path) -> str:
    """Write the end for the gate; return where it is, or why it cannot be written: a full disk does not stop a job."""
    try:
        return f"Recorded in {write_job_end(results, end)}"
    except NotWritten as error:
        return f"{NOT_RECORDED}: {error.filename} cannot be written: {error.strerror}"
