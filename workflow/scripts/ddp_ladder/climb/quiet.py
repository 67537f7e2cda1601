"""Filters that keep Snakemake's messages off the terminal if the ladder has its own; Snakemake's log file keeps them.

The ladder's progress and the plan of a dry run replace Snakemake's scheduling messages; the box at the end replaces its
report of a failed job. A full disk is always one message and not a traceback per line.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from subprocess import CalledProcessError
from typing import Any

from snakemake_interface_logger_plugins.common import LogEvent

from ddp_ladder.climb.failed_jobs import FailedJob
from ddp_ladder.climb.interrupts import ended_by
from ddp_ladder.common.files import FULL, NotWritten

ALWAYS_SHOWN = ("Nothing to be done", "Complete log")
# Never shown: Snakemake prints these before it knows that it is in a dry run.
HEAD = ("Workflow has started!", "Assuming unrestricted shared filesystem usage")
# Snakemake's messages on a failure before the ladder's box, and after it.
STOPPING = ("Shutting down, this might take", "Exiting because a job execution failed")
CLOSING = ("Complete log", "Elapsed time", "At least one job did not complete successfully")
# Warnings of the Slurm executor about its own check of job states, which is not used, and on node.memory_mb: null.
IRRELEVANT_WARNINGS = ("MinJobAge", "The 'sacct' command is not available", "No job memory information")


class SchedulingMessages(logging.Filter):
    """Filter that shows warnings, errors, and "Nothing to be done"; if ``is_shown``, all but the head."""

    def __init__(self, is_shown: Callable[[], bool]) -> None:
        super().__init__()
        self._is_shown = is_shown  # asked late: Snakemake knows of a dry run only after the Snakefile is read

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if a record of Snakemake's logger is shown."""
        message = record.getMessage()
        if self._is_shown():
            return not message.startswith(HEAD)
        if record.levelno == logging.WARNING:
            return not message.startswith(IRRELEVANT_WARNINGS)
        return record.levelno > logging.WARNING or message.startswith(ALWAYS_SHOWN)


class FailedJobs(logging.Filter):
    """Filter that collects the jobs that failed, and hides Snakemake's report on them.

    A job failed by its command, or the Slurm executor reported its end. Every other error is shown.
    """

    def __init__(self, is_shown: Callable[[], bool]) -> None:
        super().__init__()
        self._is_shown = is_shown
        self._exit_codes: dict[str, int] = {}  # by command
        self._by_id: dict[int, FailedJob] = {}
        self.others_are_shown = False  # errors that are no failed job's
        # Set by the caller; Snakemake's closing lines are hidden from then on.
        self.box_is_printed = False

    @property
    def jobs(self) -> tuple[FailedJob, ...]:
        """Jobs that failed, and not because this start was ended by a signal."""
        return tuple(self._by_id.values())

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if a record of Snakemake's logger is shown."""
        is_hidden = self._is_on_a_job(record) or self._closes(record.getMessage())
        self.others_are_shown = self.others_are_shown or (record.levelno >= logging.ERROR and not is_hidden)
        return not is_hidden or self._is_shown()

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

    def _closes(self, message: str) -> bool:
        return message.startswith(STOPPING) or (self.box_is_printed and any(each in message for each in CLOSING))


class FullDisks(logging.Filter):
    """Filter that replaces the traceback of a full or read-only disk, which ends Snakemake itself, by one message."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True, with the record's message replaced if it is on such a disk."""
        error = sys.exc_info()[1]
        if record.levelno >= logging.ERROR and isinstance(error, OSError) and error.errno in FULL:
            where = str(error.filename or ".snakemake")
            record.msg, record.args = str(NotWritten(error.errno, error.strerror, where).problem), ()
        return True


def report_full_disks() -> None:
    """Add FullDisks to Snakemake's logger."""
    logging.getLogger("snakemake.logging").addFilter(FullDisks())
    logging.raiseExceptions = False  # a log file that cannot be written would be a traceback for each line


def filter_terminal(added: logging.Filter) -> None:
    """Filter what Snakemake writes to the terminal, before its own filter does."""
    for handler in logging.getLogger("snakemake.logging").handlers:
        if handler.name == "DefaultStreamHandler":
            handler.filters.insert(0, added)
