from __future__ import annotations

import errno
import logging

import pytest
from ddp_ladder.quiet import DiskTalk, SchedulingTalk, ToldByItself, quieten


def record(level: int, message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("snakemake.logging", level, __file__, 1, message, arguments, None)


@pytest.mark.parametrize(
    ("level", "message", "shown"),
    [
        (logging.INFO, "Building DAG of jobs...", False),
        (logging.INFO, "Select jobs to execute...", False),
        (logging.INFO, "Nothing to be done (all requested files are present).", True),
        (logging.INFO, "Complete log(s): x", True),
        (logging.WARNING, "Building DAG of jobs...", True),
        (logging.ERROR, "Error in rule gate:", True),
    ],
)
def test_what_is_shown(level: int, message: str, shown: bool) -> None:
    assert SchedulingTalk(lambda: False).filter(record(level, message)) is shown
    assert SchedulingTalk(lambda: True).filter(record(level, message)) is True


def test_the_head_comes_before_it_is_known_whether_this_is_a_dry_run() -> None:
    assert not SchedulingTalk(lambda: True).filter(record(logging.INFO, "Workflow has started!"))


def test_messages_with_arguments_are_read_as_they_will_be_shown() -> None:
    assert SchedulingTalk(lambda: False).filter(record(logging.INFO, "%s log(s): x", "Complete"))


def test_a_dry_run_is_asked_about_when_it_is_known() -> None:
    known: list[bool] = []
    talk = SchedulingTalk(lambda: bool(known))
    assert not talk.filter(record(logging.INFO, "Job stats:"))
    known.append(True)
    assert talk.filter(record(logging.INFO, "Job stats:"))


def test_quieten_filters_snakemakes_logger() -> None:
    logger = logging.getLogger("snakemake.logging")
    before = list(logger.filters)
    try:
        quieten(lambda: False)
        assert not logger.filter(record(logging.INFO, "Select jobs to execute..."))
        assert logger.filter(record(logging.ERROR, "Error in rule gate:"))
    finally:
        logger.filters[:] = before


def test_a_script_that_told_its_failure_has_the_last_word() -> None:
    told = ToldByItself("scripts/doctor.py")
    assert told.filter(record(logging.ERROR, "Error in rule plan:"))
    assert told.filter(record(logging.INFO, "Execute scripts/doctor.py"))
    assert not told.filter(record(logging.ERROR, "Command 'python scripts/doctor.py' returned non-zero"))
    assert not told.filter(record(logging.ERROR, "Exiting because a job execution failed."))


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "x/lock"), "x/lock: it cannot be written: No space left"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), ".snakemake: it cannot be written: Disk quota exceeded\n"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x"), "Traceback: 100%"),
    ],
)
def test_a_full_disk_is_told_without_its_traceback(error: OSError, shown: str) -> None:
    talk = record(logging.ERROR, "Traceback: 100%")
    try:
        raise error
    except OSError:
        assert DiskTalk().filter(talk) is True
    assert talk.getMessage().startswith(shown)
