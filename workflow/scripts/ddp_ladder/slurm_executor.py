"""What the ladder does in place of the Slurm executor: submit each job once, follow it, ask for what it is told.

These methods of the plugin are replaced, because

- its submission takes every failure of sbatch for a refusal, also "Socket timed out", after which the job may be in the
  queue, and it stumbles over a site's banner;
- its check of active jobs asks ever more rarely (every three minutes in the end), waits for ever for jobs that were
  preempted, revoked or cancelled by someone, and takes a job of unknown state for a good one;
- in the shell of a job it takes SLURM_CONF away with what describes the job, and it leaves what sets defaults of
  sbatch (SBATCH_TIMELIMIT);
- a job that is being looked at, or submitted, when Ctrl-C comes is not among those that it cancels;
- without an account or a partition it guesses one, where ``null`` in cluster.yaml leaves that to Slurm.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import set_gres_string
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from ddp_ladder.files import NotWritten
from ddp_ladder.job_end import NOT_SUBMITTED, SUBMITTED, JobEnd, job_end_file, write_job_end
from ddp_ladder.job_names import new_job_name
from ddp_ladder.progress import Board
from ddp_ladder.scale_lock import signs_of_life
from ddp_ladder.slurm_environment import set_aside
from ddp_ladder.slurm_states import ask, cancel
from ddp_ladder.slurm_watch import LOOK_EVERY_S, Watch
from ddp_ladder.submit import NotSubmitted, Stopped, Submission, Submitter

NOT_KEPT = "What became of it is not kept"


def replace_executor_methods(executor: type, results: Path, stage_of: Callable[[str], str]) -> None:
    """From now on ``executor``, the plugin's class, submits and follows its jobs as described above.

    stage_of: stage of a scale. Raises AttributeError for a plugin that has no such methods.
    """
    board = Board()
    watch = Watch(ask, cancel, board)
    submitter = Submitter(results, board.say)
    begin = vars(executor)["__init__"]

    def begin_without_defaults(self: Any, *args: Any, **kwargs: Any) -> None:
        if said := set_aside(os.environ):
            print(said, file=sys.stderr, flush=True)
        begin(self, *args, **kwargs)
        self.array_jobs = set()  # of --slurm-array-jobs: an array would ask for every scale what the first one needs

    def run_job(self: Any, job: Any) -> None:
        """In a thread of the plugin's. Snakemake waits for ever for a job of which nothing is reported."""
        info, stage = SubmittedJobInfo(job), stage_of(job.wildcards.scale)
        try:
            wanted, logs = _submission(self, job, f"{stage} {job.wildcards.scale}", results)
            info.external_jobid = submitter.submit(wanted)
        except Stopped:
            return
        except NotSubmitted as error:
            end = JobEnd("", stage, wanted.scale, NOT_SUBMITTED, "", why=str(error), next=error.next)
            self._report_job_error_threadsafe(info, _message(end, results))
            return
        except Exception as error:
            self._report_job_error_threadsafe(info, f"the job cannot be submitted: {error}")
            return
        log = logs / f"{info.external_jobid}.log"
        info.aux = {"slurm_logfile": log}
        kept = _kept(JobEnd(info.external_jobid, stage, wanted.scale, SUBMITTED, str(_short(log))), results)
        if kept.startswith(NOT_KEPT):  # Slurm knows it by its name
            board.say(f"job {info.external_jobid} is followed. {kept}")
        self._report_job_submission_threadsafe(info)

    async def check_active_jobs(self: Any, active_jobs: Sequence[Any]) -> AsyncIterator[Any]:
        self.next_seconds_between_status_checks = LOOK_EVERY_S
        for info in active_jobs:
            if not watch.knows(info.external_jobid):
                scale, log = info.job.wildcards.scale, _short(Path(info.aux["slurm_logfile"]))
                watch.add(info.external_jobid, stage_of(scale), scale, log, partial(signs_of_life, results, scale, log))
        try:
            ends = {end.job_id: end for end in watch.look()}
        except Exception:
            # Snakemake ends now, without a word to the jobs.
            board.say(f"still in the queue: {' '.join(sorted(submitter.stop()))}; to end them: scancel with these ids")
            raise
        for info in active_jobs:
            end = ends.get(info.external_jobid)
            if end is None:
                yield info
            else:
                submitter.over(end.job_id)
                _report(self, info, end)

    def _report(self: Any, info: Any, end: JobEnd) -> None:
        if end.ok:
            with contextlib.suppress(OSError):
                job_end_file(results, end.scale).unlink()
            self.report_job_success(info)
        else:
            self.report_job_error(info, msg=_message(end, results), aux_logs=[end.log])

    def cancel_jobs(self: Any, active_jobs: Sequence[Any]) -> None:
        submitted = submitter.stop()
        self._job_submission_executor.shutdown(wait=True)  # a job that is being submitted is cancelled, too
        watch.cancel(submitted.union(info.external_jobid for info in active_jobs if info.external_jobid))

    def get_account_arg(_self: Any, job: Any) -> Iterator[str]:
        yield _option("--account", job.resources.get("slurm_account"))

    def get_partition_arg(_self: Any, job: Any) -> str:
        return _option("--partition", job.resources.get("slurm_partition"))

    executor.__init__ = begin_without_defaults  # type: ignore[misc]
    for method in (run_job, check_active_jobs, cancel_jobs, get_account_arg, get_partition_arg):
        getattr(executor, method.__name__)  # a plugin without it would never call ours
        setattr(executor, method.__name__, method)


def _submission(executor: Any, job: Any, label: str, results: Path) -> tuple[Submission, Path]:
    """sbatch as the plugin calls it, but for the job's name; and where logs go."""
    settings, scale = executor.workflow.executor_settings, job.wildcards.scale
    logs = executor.slurm_logdir / f"rule_{job.name}" / scale
    logs.mkdir(parents=True, exist_ok=True)
    name = new_job_name(results, scale, settings.jobname_prefix or "")
    parameters = {
        "run_uuid": name,
        "slurm_logfile": logs / "%j.log",
        "comment_str": f"rule_{job.name}_wildcards_{scale}",
        "account": next(executor.get_account_arg(job)),
        "partition": executor.get_partition_arg(job),
        "workdir": executor.workflow.workdir_init,
    }
    call = get_submit_command(job, parameters, settings, executor._failed_nodes) + set_gres_string(job)
    script = f"#!/bin/sh\n{executor.format_job_exec(job)}"
    return Submission(label, scale, name, shlex.split(call), script), logs


def _message(end: JobEnd, results: Path) -> str:
    return f"{end.in_words}. Next: {end.next}. {_kept(end, results)}. "


def _kept(end: JobEnd, results: Path) -> str:
    """Keep it for the gate; returns where, or why it could not be kept: a full disk is no reason not to follow."""
    try:
        return f"Kept in {write_job_end(results, end)}"
    except NotWritten as error:
        return f"{NOT_KEPT}: {error.filename} cannot be written: {error.strerror}"


def _option(name: str, value: str | None) -> str:
    return f" {name}={shlex.quote(value)}" if value else ""


def _short(path: Path) -> Path:
    """Relative to the working directory where it is below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
