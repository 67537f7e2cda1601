"""Command line of instrument.py: run a program, measure it, end as it ended."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
from collections.abc import Sequence

from ddp_ladder_instrument import redaction
from ddp_ladder_instrument.contract import RUN_VARIABLE
from ddp_ladder_instrument.files import RunSettingsError, read_run_settings
from ddp_ladder_instrument.measurement import Measurement, write_or_note
from ddp_ladder_instrument.own_run import own_run_settings, print_summary
from ddp_ladder_instrument.program import Program, ProgramError, die_with_parent, handlers_set_aside, hide_own_frames
from ddp_ladder_instrument.python_hooks import on_hard_exit

USAGE_EXIT_CODE = 2
HELP = """\
usage: instrument.py SCRIPT [ARGS...]
       instrument.py -m PACKAGE.MODULE [ARGS...]

Runs a PyTorch training script, unmodified, and measures it: steps, samples really consumed, waits
for data, DDP's communication, memory, and a checksum of the parameters at the end. The script sees
its own arguments, path and __main__; its output and exit code stay as they are.

environment:
  DDP_LADDER_DIRECTORY    directory of the files (default: ddp-ladder-JOB... in the working directory); a further run
                          gets one with a number. Rank 0 prints a summary to standard error
  DDP_LADDER_WITNESS      1: follow each batch to the parameters, for 200 steps at most, and say which ones were trained
                          on, at which line; slow, nothing is timed
  DDP_LADDER_METRICS      set for the script: a file for steps that it writes down itself
set by the ladder, for its own runs:
  DDP_LADDER_RUN          absolute path of the run's run.json; what is measured is written beside it
  DDP_LADDER_LAUNCHED_AT  unix seconds when the launcher was started (for the start-up time)
  DDP_LADDER_HEARTBEATS   directory, on the node, of the ranks' signs of life; without it there are none

examples:
  torchrun --standalone --nproc-per-node=2 workflow/scripts/instrument.py train.py --epochs 2
  srun python workflow/scripts/instrument.py train.py --epochs 2
"""


def main(arguments: Sequence[str], *, started_at_s: float, own_directory: str) -> None:
    """Run the program that ``arguments`` name; raise what it raises."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(HELP, end="")
        return
    try:
        program = _program(arguments)
        program.check()
        run = read_run_settings() if os.environ.get(RUN_VARIABLE) else own_run_settings()
    except (ProgramError, RunSettingsError) as error:
        print(f"instrument.py: {error}", file=sys.stderr)
        sys.exit(USAGE_EXIT_CODE)
    redaction.NAMED.update(run.secrets)
    if not (run.is_own or run.is_wrapped):  # a wrapper's thread that started it may end before it
        die_with_parent()
    if not faulthandler.is_enabled():
        with contextlib.suppress(RuntimeError, ValueError, OSError):  # standard error is closed, or is no file
            faulthandler.enable()
    measurement = Measurement(run, program, started_at_s)
    measurement.watch()
    on_hard_exit(lambda code: _record(measurement, SystemExit(code)))
    if os.path.realpath(sys.path[0]) == os.path.realpath(own_directory):
        sys.path.pop(0)  # python put it there, for instrument.py
    error_at_end = _run(program, measurement)
    if error_at_end is not None:
        hide_own_frames(own_directory)
        raise error_at_end


def _program(arguments: Sequence[str]) -> Program:
    is_module = bool(arguments) and arguments[0] == "-m"
    words = arguments[1:] if is_module else arguments
    if not words:
        raise ProgramError("no script given\n  next     see instrument.py --help")
    if words[0].startswith("-"):
        raise ProgramError(f"unknown option {words[0]}\n  next     see instrument.py --help")
    return Program(words[0], is_module, tuple(words[1:]))


def _run(program: Program, measurement: Measurement) -> BaseException | None:
    """Run the program and write its record; return the exception that must end this process, if any."""
    process = os.getpid()
    ended_with: BaseException | None = None
    try:
        program.run()
    except BaseException as error:
        ended_with = error
    if os.getpid() != process:  # a child that the script forked has returned to here
        return ended_with
    return _record(measurement, ended_with)


def _record(measurement: Measurement, ended_with: BaseException | None) -> BaseException | None:
    """End the measurement and write it; return the exception that must end this process, if any.

    What exits after the program's own end, at the interpreter's, changes nothing of it.
    """
    if measurement.ended:
        return ended_with
    with handlers_set_aside():
        try:
            ended_with = measurement.end(ended_with)
        except Exception as error:  # of ours: the program ends as it would have
            measurement.not_measured.note("end", error)
        record = write_or_note(measurement)
        if measurement.run.is_own and record is not None and record["rank"] == 0:
            print_summary(record, measurement.judge().table, measurement.run, measurement.testimony())
    return ended_with
