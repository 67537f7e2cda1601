"""Changes of Snakemake and of its process. CONTRIBUTING lists them, with the reason and the test of each.

If another workflow uses this one as a module, that workflow decides on terminal, signals and Snakemake's lock.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import CalledProcessError
from types import FrameType, TracebackType
from typing import Any, ClassVar

import psutil
from snakemake.executors.local import Executor as LocalExecutor
from snakemake.settings.enums import Quietness
from snakemake_executor_plugin_slurm import Executor as SlurmExecutor
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry
from snakemake_interface_logger_plugins.common import LogEvent

from ddp_ladder.climb.job_watch import LOOK_EVERY_S, JobWatch, WatchedJob, submission
from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.climb.start import (
    FailedJob,
    GateNotices,
    check_before_submission,
    no_such_target,
    require_every_job_over,
)
from ddp_ladder.common.command import leave_lost_terminal, print_what_can_be_printed, put_this_python_first
from ddp_ladder.common.files import NotWritten, shown_path
from ddp_ladder.common.messages import UserError, notify, stop
from ddp_ladder.common.process import SIGNALS, ignored_from_the_start
from ddp_ladder.ledger.jobs import update_or_warn
from ddp_ladder.preflight.result import SUPPORT, bad_nodes_file, left_out, listed_bad_node
from ddp_ladder.run.progress import Console
from ddp_ladder.settings.load import WITHOUT_TRAINING
from ddp_ladder.settings.terms import PRODUCTION, REHEARSAL, STAGES
from ddp_ladder.slurm import jobs as slurm_jobs
from ddp_ladder.slurm.jobs import JobEnd, NotSubmitted, Refused, Stopped, Submission, Submitter
from ddp_ladder.slurm.lock import START, Lock, held
from ddp_ladder.slurm.query import set_aside


def patch_process(workflow: Any, is_module: bool) -> FailedJobs:
    """Change this process before the settings are read; return the filter that collects the jobs that fail."""
    failed_jobs = FailedJobs(workflow)
    print_what_can_be_printed()  # a character that the terminal does not have would end the climb
    put_this_python_first()  # `python` in a rule's shell is the one that has the packages
    if is_module:
        return failed_jobs
    logging.raiseExceptions = False  # a log file on a full disk would be a traceback for each line
    filter_terminal(SchedulingMessages(workflow))
    if workflow.is_main_process:
        filter_terminal(failed_jobs)
        end_on_signals()
        pass_on_at_cancel(LocalExecutor)
    return failed_jobs


def patch_execution(
    workflow: Any, ladder: Ladder, gates: GateNotices, rule_name: Callable[[str], str], is_module: bool
) -> None:
    """Replace the Slurm executor and, unless another workflow uses this one as a module, Snakemake's lock.

    gates: what looks after each job. rule_name: the name of a rule in the workflow that uses it.
    """
    slurm = ExecutorPluginRegistry().get_plugin("slurm")
    slurm.executor = ladder_executor(SlurmExecutor, ladder, {rule_name(name): name for name in RULES})
    if workflow.is_main_process and not is_module:
        check_requests(workflow, ladder)
        filter_terminal(AfterEachJob(gates.look))


# The terminal: the ladder's progress and the plan of a dry run replace Snakemake's scheduling messages, and the box at
# the end its report of a failed job. Its log file keeps all of them. These are filters and no logger plugin: a plugin
# would have to be an installed package, and named on the command line.

# Targets of which a dry run shows the ladder's plan in place of Snakemake's list of jobs.
PLANNED = frozenset({"all", *STAGES, PRODUCTION, REHEARSAL})
# Never shown: Snakemake prints these before it knows that it is in a dry run.
HEAD = ("Workflow has started!", "Assuming unrestricted shared filesystem usage")
# Snakemake's messages on a failure, which has the ladder's box.
CLOSING = (
    "Shutting down, this might take", "Exiting because a job execution failed", "Complete log", "Elapsed time",
    "At least one job did not complete successfully",
)  # fmt: skip
# Warnings of the Slurm executor about its own check of job states, which is not used.
IRRELEVANT_WARNINGS = ("MinJobAge", "The 'sacct' command is not available")


def shows_plan(workflow: Any) -> bool:
    """Return True if a dry run of what is asked for shows the plan: whole stages, no single files, nothing left out."""
    asked = workflow.dag_settings
    return asked is None or not (asked.until or asked.omit_from or set(asked.targets) - PLANNED)


class SchedulingMessages(logging.Filter):
    """Filter that shows warnings, errors and "Nothing to be done"; all but the head if the user asks for more."""

    def __init__(self, workflow: Any) -> None:
        super().__init__()
        self._workflow = workflow

    def filter(self, record: logging.LogRecord) -> bool:
        message, settings = record.getMessage(), self._workflow.output_settings
        # Asked late: Snakemake knows of a dry run only after the Snakefile is read.
        is_listed = settings.printshellcmds or settings.verbose or not shows_plan(self._workflow)
        # Quiet by a profile, or for a target that runs no training.
        is_quiet = Quietness.PROGRESS in (settings.quiet or ()) or not WITHOUT_TRAINING.isdisjoint(sys.argv[1:])
        if is_listed if self._workflow.dryrun else not is_quiet:
            return not message.startswith(HEAD)
        if record.levelno == logging.WARNING:
            return not message.startswith(IRRELEVANT_WARNINGS)
        return record.levelno > logging.WARNING or message.startswith("Nothing to be done")


class FailedJobs(logging.Filter):
    """Filter that collects the jobs that failed, and hides Snakemake's report on them.

    A job failed by its command, or the Slurm executor reported its end. Every other error is shown.
    """

    def __init__(self, workflow: Any) -> None:
        super().__init__()
        self._settings = workflow.output_settings
        self._exit_codes: dict[str, int] = {}  # by command
        self._by_id: dict[int, FailedJob] = {}

    @property
    def jobs(self) -> tuple[FailedJob, ...]:
        """Jobs that failed, and not because this start was ended by a signal."""
        return tuple(self._by_id.values())

    def filter(self, record: logging.LogRecord) -> bool:
        is_hidden = self._is_on_a_job(record) or any(words in record.getMessage() for words in CLOSING)
        return bool(not is_hidden or self._settings.printshellcmds or self._settings.verbose)

    def _is_on_a_job(self, record: Any) -> bool:
        event = getattr(record, "event", None)
        if event == LogEvent.JOB_FINISHED:  # a retry succeeded
            self._by_id.pop(record.job_id, None)
        if event == LogEvent.JOB_ERROR:
            return self._add(record)
        cause = getattr(sys.exc_info()[1], "__context__", None)
        if event != LogEvent.ERROR or not isinstance(cause, CalledProcessError):
            return False
        self._exit_codes[str(cause.cmd)] = cause.returncode
        return True

    def _add(self, record: Any) -> bool:
        """Collect the job, unless a signal ends this start; return True if Snakemake's report on it is to be hidden."""
        command = (record.shellcmd or "").strip()
        exit_code = next((code for ran, code in self._exit_codes.items() if command and command in ran), None)
        if exit_code is None and not record.rule_msg:
            return record.jobid in self._by_id  # some versions report each job twice
        if ended_by() is None:
            message = "" if exit_code is not None else record.rule_msg
            self._by_id[record.jobid] = FailedJob(record.rule_name, next(iter(record.log), ""), exit_code, message)
        return True


class AfterEachJob(logging.Filter):
    """No filter: it is called after each job, and shows all."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self._call = call

    def filter(self, record: Any) -> bool:
        if getattr(record, "event", None) in (LogEvent.JOB_FINISHED, LogEvent.JOB_ERROR):
            self._call()
        return True


def filter_terminal(added: logging.Filter) -> None:
    """Filter what Snakemake writes to the terminal, before its own filter does."""
    for handler in logging.getLogger("snakemake.logging").handlers:
        if handler.name == "DefaultStreamHandler":
            handler.filters.insert(0, added)


# Before Snakemake reads any file


def check_requests(workflow: Any, ladder: Ladder) -> None:
    """Make ``workflow`` check its targets and options, and lock the results while it runs jobs.

    A dry run locks nothing, nor does --nolock. What only shows something, too, is not stopped by incomplete files.
    """
    prepare = workflow._prepare_dag

    def prepare_checked(**options: Any) -> None:
        asked, executor = workflow.dag_settings, workflow.executor_plugin  # None: --report and the like
        # No question to the user about incomplete files of a killed start: each start computes what is to do.
        asked.force_incomplete = True
        if workflow.touch:
            notify("nothing to touch: what is to do depends on the settings and the records, not on time stamps")
            sys.exit(0)
        targets = [rule.name for rule in workflow.rules if not rule.has_wildcards()]
        if problem := no_such_target(asked.targets, targets):
            stop(problem)
        if executor is not None:
            wants_lock = not (options["nolock"] or workflow.dryrun or only_reads(ladder, asked.targets))
            options["nolock"] = True
            if wants_lock:
                hold_results(ladder, submits=not workflow.local_exec)
        prepare(**options)

    workflow._prepare_dag = prepare_checked


def only_reads(ladder: Ladder, targets: Collection[str]) -> bool:
    """Return True if a start for these targets changes nothing that another start may be working on."""
    quick = bool(targets) and WITHOUT_TRAINING.issuperset(targets)
    return quick and not ("eject" in targets and ladder.plan_to_write)


def hold_results(ladder: Ladder, submits: bool) -> None:
    """Hold the results to the end of this process.

    Exits with a message while another start does, or a job of a killed start that makes other runs. One that makes the
    same runs is followed, but not from a start that runs them itself.
    """
    results = Path(ladder.results)
    lock = held(Lock.of_start(results), START, notify)
    until_the_end = ExitStack()
    atexit.register(until_the_end.close)
    try:
        if killed := until_the_end.enter_context(lock):
            notify(f"the start of {killed.since} ({killed}) was killed; this one goes on from what it has left")
        if not submits or (killed and ladder.plan_to_write):  # if not, submission checks the jobs of its scales
            require_every_job_over(results)
    except UserError as error:
        stop(error)


# SIGINT, SIGTERM and SIGHUP end a climb in order: its jobs first, then its gates and the report.

AGAIN_S = 0.5
# These end by themselves: a job whose submission is cut off may run unseen, and scancel is still needed.
OF_SLURM = frozenset({"sacct", "sbatch", "scancel", "scontrol", "sinfo", "squeue"})
ENDS_ITS_CHILDREN = ("run_scale.py", "production.py")  # they pass the signal on to their own processes, in order


class EndedBySignal(KeyboardInterrupt):
    """This process got a signal that ends it; the text names it."""


_ended_by: str | None = None


def ended_by() -> str | None:
    """Return the name of the signal that is ending this process; None if there is none."""
    return _ended_by


def end_on_signals() -> None:
    """Install handlers: the first of SIGNALS is passed on to the children and raised here as EndedBySignal.

    Later ones are ignored, also by what is started after it.
    """
    sys.excepthook = _print_unless_ended
    if threading.current_thread() is threading.main_thread():
        for signum in SIGNALS:
            if not ignored_from_the_start(signum):
                signal.signal(signum, _interrupt)


def _print_unless_ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught exception, but no signal: the handler has reported it."""
    if not isinstance(error, EndedBySignal):
        sys.__excepthook__(kind, error, trace)


def _interrupt(signum: int, _frame: FrameType | None) -> None:
    global _ended_by
    for later in SIGNALS:
        signal.signal(later, signal.SIG_IGN)
    leave_lost_terminal()
    _ended_by = name = signal.Signals(signum).name
    with contextlib.suppress(OSError):  # not print: it may be what was interrupted
        kept = "what the script has saved is" if PRODUCTION in sys.argv[1:] else "finished runs are"
        os.write(2, f"{name}: ending what runs; {kept} kept\n".encode())
    _pass_on(signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM)
    raise EndedBySignal(name)


def pass_on_at_cancel(executor: type[Any]) -> None:
    """Make ``executor``, which starts jobs on this machine, end them when it is cancelled, and then wait for them.

    Also a job that was about to start when the signal came. Raises AttributeError for a class without ``cancel``.
    """
    wait_for_jobs = executor.cancel

    def cancel(self: Any) -> None:
        ended = threading.Event()

        def pass_on() -> None:
            while not ended.wait(AGAIN_S):
                _pass_on(signal.SIGTERM)

        sender = threading.Thread(target=pass_on, daemon=True)
        sender.start()
        try:
            wait_for_jobs(self)
        finally:
            ended.set()
            sender.join()

    executor.cancel = cancel


def _pass_on(signum: signal.Signals) -> None:
    for process in _receivers(psutil.Process().children()):
        with contextlib.suppress(psutil.Error):  # ended in the meantime
            process.send_signal(signum)


def _receivers(processes: Sequence[psutil.Process]) -> Iterator[psutil.Process]:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.name() in OF_SLURM:
                continue
            below = process.children()
            yield process
            if not any(argument.endswith(ENDS_ITS_CHILDREN) for argument in process.cmdline()):
                yield from _receivers(below)


# --- The Slurm executor of the ladder's jobs, a subclass of the plugin's.


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
            if not self._watch.knows(info.external_jobid):
                planned, log = self.ladder.job(info.job.wildcards.scale), Path(shown_path(info.aux["slurm_logfile"]))
                self._watch.add(WatchedJob.of(planned, info.external_jobid, log, self.results))
        ends = {end.job_id: end for end in self._watch.look()}
        for info in own:
            if end := ends.get(info.external_jobid):
                self._submitter.over(end.job_id)
                self._report(info, end)
            else:
                yield info
        if ends:
            self._account()

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
