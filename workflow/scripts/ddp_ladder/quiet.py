"""Keep Snakemake's scheduling talk out of the way of the ladder's own words: its progress, and the plan of a dry run.

Asked or not, a full disk is told as one message and not as tracebacks.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from ddp_ladder.files import FULL, NotWritten

SAID_ALL_THE_SAME = ("Nothing to be done", "Complete log")
# Before the plan of a dry run stand only the ladder's own words; Snakemake does not know then that it is one.
HEAD = ("Workflow has started!", "Assuming unrestricted shared filesystem usage")
# Warnings of the Slurm executor about its own way of asking for states, which is not used, and node.memory_mb: null.
NO_CONCERN = ("MinJobAge", "The 'sacct' command is not available", "No job memory information")


class SchedulingTalk(logging.Filter):
    """Lets through warnings, errors, and that there is nothing to do; all but the head where it is to be shown."""

    def __init__(self, is_shown: Callable[[], bool]) -> None:
        super().__init__()
        self._is_shown = is_shown  # asked late: Snakemake knows of a dry run only after the Snakefile is read

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record of Snakemake's logger is shown."""
        message = record.getMessage()
        if self._is_shown():
            return not message.startswith(HEAD)
        if record.levelno == logging.WARNING:
            return not message.startswith(NO_CONCERN)
        return record.levelno > logging.WARNING or message.startswith(SAID_ALL_THE_SAME)


class ToldByItself(logging.Filter):
    """Hides what Snakemake says of the end of a script that has told it itself; that is the last thing that happens."""

    def __init__(self, script: str) -> None:
        super().__init__()
        self._script = script
        self._told = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record of Snakemake's logger is shown."""
        self._told = self._told or (record.levelno >= logging.ERROR and self._script in record.getMessage())
        return not self._told


class DiskTalk(logging.Filter):
    """Puts one message in the place of the traceback of a full or read-only disk that ends Snakemake itself."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always True."""
        error = sys.exc_info()[1]
        if record.levelno >= logging.ERROR and isinstance(error, OSError) and error.errno in FULL:
            where = str(error.filename or ".snakemake")
            record.msg, record.args = str(NotWritten(error.errno, error.strerror, where).problem), ()
        return True


def tell_of_full_disks() -> None:
    """Filter Snakemake's logger from now on."""
    logging.getLogger("snakemake.logging").addFilter(DiskTalk())
    logging.raiseExceptions = False  # a log file that cannot be written would be a traceback for each line


def quieten(is_shown: Callable[[], bool]) -> None:
    """Filter Snakemake's logger from now on."""
    logging.getLogger("snakemake.logging").addFilter(SchedulingTalk(is_shown))


def leave_the_word_to(script: str) -> None:
    """Filter Snakemake's logger from the failure of a script on."""
    logging.getLogger("snakemake.logging").addFilter(ToldByItself(script))
