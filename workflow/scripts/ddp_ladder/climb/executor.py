"""The Slurm executor of the ladder's jobs, a subclass of the plugin's. What it replaces, and why: CONTRIBUTING."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from ddp_ladder.climb.job_watch import LOOK_EVERY_S, JobWatch, WatchedJob, submission
from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.climb.start import check_before_submission
from ddp_ladder.common.files import NotWritten, shown_path
from ddp_ladder.common.messages import notify
from ddp_ladder.ledger.jobs import update_or_warn
from ddp_ladder.preflight.result import SUPPORT, bad_nodes_file, left_out, listed_bad_node
from ddp_ladder.run.progress import Console
from ddp_ladder.settings.terms import STAGES
from ddp_ladder.slurm import jobs as slurm_jobs
from ddp_ladder.slurm.jobs import JobEnd, NotSubmitted, Refused, Stopped, Submission, Submitter
from ddp_ladder.slurm.query import set_aside

MEASURES = tuple(f"measure_{stage}" for stage in STAGES)
RULES = (*MEASURES, "preflight_scale", "search_batch")  # whose jobs the ladder submits


def ladder_executor(plugin: type[Any], ladder: Ladder, rules: Mapping[str, str]) -> type[Any]:
    """Return a subclass of the plugin's executor for the jobs of these rules; the plugin handles those of other rules.

    rules: the ladder's name of each, by its name in the workflow that uses it.
    """
    return type("LadderExecutor", (LadderJobs, plugin), {"ladder": ladder, "rules": rules})


class LadderJobs:
    """The overriding methods. Every other method is the plugin's, the next base class."""

    ladder: ClassVar[Ladder]
    rules: ClassVar[Mapping[str, str]]

    def __init__(self, workflow: Any, logger: Any) -> None:
        if notice := set_aside(os.environ):
            notify(notice)
        # Before the plugin starts its thread, which would print an error if this start ended here.
        check_before_submission(self.ladder, [job for job in workflow.dag.needrun_jobs() if self._is_own(job)])
        self.results = Path(self.ladder.results)
        # As the last start's, so that a job that it has left makes the same runs. Asked before the plan is written.
        self._is_same_plan = not self.ladder.plan_to_write
        self._console = Console()
        self._watch = JobWatch(slurm_jobs.ask, self._console)
        self._submitter = Submitter(self.results, self._console.say)
        self._replaced: set[str] = set()  # scales that were submitted again, without a bad node
        super().__init__(workflow, logger)  # type: ignore[call-arg]

    def _is_own(self, job: Any) -> bool:
        return not job.is_group() and job.rule.name in self.rules

    def run_job(self: Any, job: Any) -> None:
        """Submit the job, in a thread of the plugin. Every outcome is reported, or Snakemake waits for ever."""
        if not self._is_own(job):
            super().run_job(job)  # type: ignore[misc]
            return
        info, scale = SubmittedJobInfo(job), job.wildcards.scale
        stage = self.ladder.job(scale).stage
        try:
            wanted, logs = self._submission(job)
            info.external_jobid = self._submitter.submit(wanted)
        except Stopped:
            return
        except NotSubmitted as error:
            why, then = str(error), error.next
            if isinstance(error, Refused) and (bad := left_out(self.ladder.job(scale), self.results)):
                nodes, reasons = ", ".join(node.node for node in bad), "; ".join(node.in_words for node in bad)
                why = f"{reasons}; a job without {nodes} is refused: {why}"
                then = f"{SUPPORT.format(file=bad_nodes_file(self.results))}; or {then}"
            end = JobEnd("", stage, scale, slurm_jobs.NOT_SUBMITTED, "", why=why, next=then)
            self._console.say(f"{stage} {scale}: {end.in_words}")
            self.report_job_error(info, msg=_message(end, self.results))
            return
        except Exception as error:
            # Of the plugin or of a disk: it ends this job, and those that are in the queue are followed to their ends.
            self.report_job_error(info, msg=f"the job cannot be submitted: {error}")
            return
        log = logs / f"{info.external_jobid}.log"
        info.aux = {"slurm_logfile": log}
        submitted = JobEnd(info.external_jobid, stage, scale, slurm_jobs.SUBMITTED, shown_path(log))
        if lost := _not_recorded(submitted, self.results):  # Slurm knows it by its name
            self._console.say(f"job {info.external_jobid} is followed. {lost}")
        self.report_job_submission(info)

    def _submission(self: Any, job: Any) -> tuple[Submission, Path]:
        """Return the call of sbatch for a job of Snakemake, and the directory of its logs."""
        scale = job.wildcards.scale
        planned = self.ladder.job(scale)
        logs = self.slurm_logdir / f"rule_{job.name}" / scale
        logs.mkdir(parents=True, exist_ok=True)
        # In the job, the plugin's executor for job steps would only start one more Snakemake, which then runs the rule.
        command = self.format_job_exec(job).replace("--executor slurm-jobstep", "--executor local", 1)
        left = slurm_jobs.job_left(self.results, scale) if self._is_same_plan else None
        is_of_same_rule = left and left.log == shown_path(logs / f"{left.job_id}.log")
        earlier = left.job_id if left and is_of_same_rule else None
        return submission(planned, self.results, logs, str(self.workflow.workdir_init), command, earlier), logs

    async def check_active_jobs(self: Any, active_jobs: Sequence[Any]) -> AsyncIterator[Any]:
        """Yield the jobs that have not ended, and report the others. Beside jobs of other rules it keeps their pace."""
        own = [info for info in active_jobs if self._is_own(info.job)]
        self.next_seconds_between_status_checks = LOOK_EVERY_S
        if others := [info for info in active_jobs if info not in own]:
            async for info in super().check_active_jobs(others):  # type: ignore[misc]
                yield info
        for info in own:
            self._follow(info)
        ends = {end.job_id: end for end in self._watch.look()}
        for info in own:
            if end := ends.get(info.external_jobid):
                self._submitter.over(end.job_id)
                self._report(info, end)
            else:
                yield info
        if ends:
            self._account()

    def _follow(self: Any, info: Any) -> None:
        if not self._watch.knows(info.external_jobid):
            planned, log = self.ladder.job(info.job.wildcards.scale), Path(shown_path(info.aux["slurm_logfile"]))
            self._watch.add(WatchedJob.of(planned, info.external_jobid, log, self.results))

    def _report(self: Any, info: Any, end: JobEnd) -> None:
        if end.ok:
            with contextlib.suppress(OSError):
                slurm_jobs.job_end_file(self.results, end.scale).unlink()
            if self._replaces_node(info, end):
                threading.Thread(target=self.run_job, args=(info.job,)).start()  # submission may take minutes
            else:
                self.report_job_success(info)
        else:
            self.report_job_error(info, msg=_message(end, self.results), aux_logs=[end.log])

    def _replaces_node(self: Any, info: Any, end: JobEnd) -> bool:
        """Return True, once for a scale, if its job measured nothing because of one bad node, which is listed then."""
        planned = self.ladder.job(end.scale)
        only_asks = self.rules[info.job.rule.name] == "preflight_scale"  # which node is bad
        if only_asks or end.scale in self._replaced:
            return False
        then = "submitting again without {node}"
        if not listed_bad_node(self.results, planned, end.job_id, end.nodes, self._console.say, then):
            return False
        self._replaced.add(end.scale)
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
        if submitted := self._submitter.stop():
            self._console.say(slurm_jobs.cancel(sorted(submitted, key=int)))
        if others := [info for info in active_jobs if not self._is_own(info.job)]:
            super().cancel_jobs(others)  # type: ignore[misc]


def _message(end: JobEnd, results: Path) -> str:
    recorded = _not_recorded(end, results) or f"Recorded in {slurm_jobs.job_end_file(results, end.scale)}"
    return f"{end.in_words}. Next: {end.next}. {recorded}. "


def _not_recorded(end: JobEnd, results: Path) -> str:
    """Write the end for the gate; return why it cannot be written, or nothing: a full disk does not stop a job."""
    try:
        slurm_jobs.write_job_end(results, end)
    except NotWritten as error:
        return f"Its end is not recorded: {error.filename} cannot be written: {error.strerror}"
    return ""
