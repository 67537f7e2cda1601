from __future__ import annotations

import io
import logging
import signal
import sys
from collections.abc import Iterator
from subprocess import CalledProcessError
from types import SimpleNamespace
from typing import Any

import pytest
from ddp_ladder.climb import snakemake as quiet
from ddp_ladder.climb.snakemake import FailedJobs, SchedulingMessages, filter_terminal
from snakemake.settings.enums import Quietness
from snakemake_interface_logger_plugins.common import LogEvent

LOGGER = logging.getLogger("snakemake.logging")


def record(level: int, message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("snakemake.logging", level, __file__, 1, message, arguments, None)


def workflow(*quiet: Quietness) -> Any:
    output = SimpleNamespace(printshellcmds=False, verbose=False, quiet=set(quiet))
    return SimpleNamespace(dryrun=False, output_settings=output, dag_settings=None)


@pytest.mark.parametrize(
    ("level", "message", "shown"),
    [
        (logging.INFO, "Building DAG of jobs...", False),
        (logging.INFO, "Select jobs to execute...", False),
        (logging.INFO, "Nothing to be done (all requested files are present).", True),
        (logging.WARNING, "Building DAG of jobs...", True),
        (logging.ERROR, "Error in rule gate:", True),
    ],
)
def test_what_is_shown(level: int, message: str, shown: bool) -> None:
    quiet, loud = workflow(Quietness.PROGRESS), workflow()
    assert SchedulingMessages(quiet).filter(record(level, message)) is shown
    assert SchedulingMessages(loud).filter(record(level, message)) is True
    for dry in (quiet, loud):
        dry.dryrun = True
        assert SchedulingMessages(dry).filter(record(level, message)) is shown


@pytest.mark.parametrize(("target", "is_listed"), [("stage2", False), ("production", False), ("report", True)])
def test_a_dry_run_that_shows_a_plan_lists_no_jobs(target: str, is_listed: bool) -> None:
    dry = workflow()
    dry.dryrun, dry.dag_settings = True, SimpleNamespace(until=(), omit_from=(), targets={target})
    assert SchedulingMessages(dry).filter(record(logging.INFO, "rule production:")) is is_listed


@pytest.fixture
def terminal() -> Iterator[io.StringIO]:
    """What Snakemake writes to the terminal and to its log file, from its logger with handlers as it sets them up."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.name = "DefaultStreamHandler"
    LOGGER.addHandler(handler)
    yield stream
    LOGGER.removeHandler(handler)


def fail(number: int, code: int | None, message: str = "") -> None:
    """Report a job as Snakemake does; code: None where the executor reports it."""
    if code is not None:
        error = ValueError("RuleException")
        error.__context__ = CalledProcessError(code, f"set -euo pipefail;  run {number}\n ")
        try:
            raise error
        except ValueError:
            LOGGER.error("RuleException", extra={"event": LogEvent.ERROR})
    log = [f"logs/measure_{number}x1.log"]
    extra = {"event": LogEvent.JOB_ERROR, "rule_name": "measure", "jobid": number, "log": log, "rule_msg": message}
    LOGGER.error("Error in rule", extra={**extra, "shellcmd": f"\n run {number}\n\n"})


@pytest.fixture
def failed(terminal: io.StringIO) -> FailedJobs:
    """The filter that collects failed jobs, before the terminal."""
    filter_terminal(failed_jobs := FailedJobs(workflow()))
    return failed_jobs


def test_failed_jobs_are_collected_and_not_shown(terminal: io.StringIO, failed: FailedJobs) -> None:
    fail(1, 3)
    fail(2, None, "job 12 ended TIMEOUT")
    fail(1, None)  # once more, at the end
    LOGGER.error("Exiting because a job execution failed. Look above for error messages")
    assert terminal.getvalue() == ""
    told = [(job.name, job.exit_code, job.message) for job in failed.jobs]
    assert told == [("measure_1x1", 3, ""), ("measure_2x1", None, "job 12 ended TIMEOUT")]


def test_other_errors_are_shown(terminal: io.StringIO, failed: FailedJobs) -> None:
    LOGGER.error("MissingOutputException", extra={"event": LogEvent.ERROR})
    fail(1, None)
    assert terminal.getvalue() == "MissingOutputException\nError in rule\n"
    assert failed.jobs == ()
    LOGGER.error("WorkflowError:\nAt least one job did not complete successfully.")  # Snakemake's closing lines are not
    LOGGER.error("KeyError: 'a bug'")
    assert terminal.getvalue().endswith("Error in rule\nKeyError: 'a bug'\n")


def test_what_fails_after_a_signal_fails_for_it(
    terminal: io.StringIO, failed: FailedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiet, "ended_by", lambda: "SIGINT")
    fail(1, 1)
    assert (failed.jobs, terminal.getvalue()) == ((), "")


@pytest.mark.parametrize(
    ("target", "kept"), [("stage1", "finished runs are"), ("production", "what the script has saved is")]
)
def test_a_signal_is_answered_with_what_is_kept(
    target: str, kept: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quiet, "_ended_by", None)
    monkeypatch.setattr(quiet, "_pass_on", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["snakemake", target])
    with pytest.raises(quiet.EndedBySignal):
        quiet._interrupt(signal.SIGINT, None)
    assert capfd.readouterr().err == f"SIGINT: ending what runs; {kept} kept\n"
