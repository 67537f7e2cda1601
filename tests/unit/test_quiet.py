from __future__ import annotations

import logging

import pytest
from ddp_ladder.quiet import SchedulingTalk, ToldByItself, quieten


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
