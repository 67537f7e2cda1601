"""Assemble the records of runs that have ended from their raw files, and leave each in the run's directory.

A scale's job executes this beside its next run, once for all its runs, and writes all its records at its end.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.assembly.assemble import record_of
from ddp_ladder.assembly.run_records import MOST_RANKS, write_tables
from ddp_ladder.common.command import command, option
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.records.raw_files import read_raw_run
from ddp_ladder.records.record import write_record


@command(
    "assemble.py results/runs/default/weak/1x2/r1",
    option("runs", type=Path, nargs="*", metavar="run", help="directory of a run"),
    option(
        "--serve",
        action="store_true",
        help="read directories from the standard input, a JSON string in a line, and answer each with 1 (assembled) or "
        "0 (it cannot be)",
    ),
)
def main(arguments: Namespace) -> int:
    """Assemble the records and write assembled.json of each."""
    if not (arguments.runs or arguments.serve):
        raise UserError(Problem("assemble.py", "no run to assemble", next="name the directory of a run"))
    for path in arguments.runs:
        print(f"written: {_assembled(RunDirectory(path))}")
    for line in sys.stdin if arguments.serve else ():
        answer = 1
        try:
            _assembled(RunDirectory(Path(json.loads(line))))
        except (OSError, ValueError):
            answer = 0  # the job tries it, too, and says why
        print(answer, end="", flush=True)
    return 0


def _assembled(directory: RunDirectory) -> Path:
    raw = read_raw_run(directory)
    write_record(directory.assembled, record_of(raw))
    if raw.spec.world_size <= MOST_RANKS:
        with suppress(OSError, ValueError):  # the record matters
            write_tables(raw)
    return directory.assembled


if __name__ == "__main__":
    sys.exit(main())
