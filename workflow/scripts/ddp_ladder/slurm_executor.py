"""What the ladder does in place of the Slurm executor: follow its jobs, and ask for no more than it is told.

The plugin submits; these of its methods are replaced, because

- its check of active jobs asks ever more rarely (every three minutes in the end), waits for ever for jobs that were
  preempted, revoked or cancelled by someone, and takes a job of unknown state for a good one;
- in the shell of a job it takes SLURM_CONF away with what describes the job, and it leaves what sets defaults of
  sbatch (SBATCH_TIMELIMIT);
- a job that is being looked at when Ctrl-C comes is not among those that it cancels;
- without an account or a partition it guesses one, where ``null`` in cluster.yaml leaves that to Slurm.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ddp_ladder.files import NotWritten
from ddp_ladder.job_end import SUBMITTED, JobEnd, job_end_file, write_job_end
from ddp_ladder.progress import Board
from ddp_ladder.slurm_environment import set_aside
from ddp_ladder.slurm_states import ask, cancel
from ddp_ladder.slurm_watch import LOOK_EVERY_S, Watch

NOT_KEPT = "What became of it is not kept"


def replace_executor_methods(executor: type, results: Path, stage_of: Callable[[str], str]) -> None:
    """From now on ``executor``, the plugin's class, follows its jobs as described above.

    stage_of: stage of a scale. Raises AttributeError for a plugin that has no such methods.
    """
    watch = Watch(ask, cancel, Board())
    begin = vars(executor)["__init__"]

    def begin_without_defaults(self: Any, *args: Any, **kwargs: Any) -> None:
        if said := set_aside(os.environ):
            print(said, file=sys.stderr, flush=True)
        begin(self, *args, **kwargs)

    async def check_active_jobs(self: Any, active_jobs: Sequence[Any]) -> AsyncIterator[Any]:
        self.next_seconds_between_status_checks = LOOK_EVERY_S
        for info in active_jobs:
            if not watch.knows(info.external_jobid):
                scale = info.job.wildcards.scale
                log = _short(Path(info.aux["slurm_logfile"]))
                kept = keep(JobEnd(info.external_jobid, stage_of(scale), scale, SUBMITTED, str(log)))
                if kept.startswith(NOT_KEPT):
                    watch.say(f"job {info.external_jobid} is followed. {kept}")
                watch.add(info.external_jobid, stage_of(scale), scale, log)
        ends = {end.job_id: end for end in watch.look()}
        for info in active_jobs:
            end = ends.get(info.external_jobid)
            if end is None:
                yield info
            else:
                _report(self, info, end)

    def keep(end: JobEnd) -> str:
        """Keep it for the gate; returns where, or why it could not be kept: a full disk is no reason not to follow."""
        try:
            return f"Kept in {write_job_end(results, end)}"
        except NotWritten as error:
            return f"{NOT_KEPT}: {error.filename} cannot be written: {error.strerror}"

    def _report(self: Any, info: Any, end: JobEnd) -> None:
        if end.ok:
            job_end_file(results, end.scale).unlink(missing_ok=True)
            self.report_job_success(info)
        else:
            self.report_job_error(info, msg=f"{end.in_words}. Next: {end.next}. {keep(end)}. ", aux_logs=[end.log])

    def cancel_jobs(self: Any, _active_jobs: Sequence[Any]) -> None:
        self._job_submission_executor.shutdown(wait=True)  # a job that is being submitted is to be cancelled, too
        with self.lock:
            submitted = [info.external_jobid for info in self.active_jobs if info.external_jobid]
        watch.cancel(submitted)

    def get_account_arg(_self: Any, job: Any) -> Iterator[str]:
        yield _option("--account", job.resources.get("slurm_account"))

    def get_partition_arg(_self: Any, job: Any) -> str:
        return _option("--partition", job.resources.get("slurm_partition"))

    executor.__init__ = begin_without_defaults  # type: ignore[misc]
    for method in (check_active_jobs, cancel_jobs, get_account_arg, get_partition_arg):
        getattr(executor, method.__name__)  # a plugin without it would never call ours
        setattr(executor, method.__name__, method)


def _option(name: str, value: str | None) -> str:
    return f" {name}={shlex.quote(value)}" if value else ""


def _short(path: Path) -> Path:
    """Relative to the working directory where it is below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
