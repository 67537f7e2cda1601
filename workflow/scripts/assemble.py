"""Assemble the record of a run that has ended from its raw files, and leave it in the run's directory.

A scale's job executes this beside its next run, and writes all its records at its end.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import ddp_ladder.common.single_thread  # noqa: F401
from ddp_ladder.assembly.assemble import record_of
from ddp_ladder.assembly.tables import MOST_RANKS, write_tables
from ddp_ladder.common.command import command, parser_of
from ddp_ladder.common.files import NotWritten, RunDirectory
from ddp_ladder.records.raw_files import read_raw_run
from ddp_ladder.records.record import write_record


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Assemble the record and write assembled.json."""
    parser = parser_of(__doc__, "assemble.py results/runs/default/weak/1x2/r1")
    parser.add_argument("run", type=Path, help="directory of the run")
    directory = RunDirectory(parser.parse_args(argv).run)
    raw = read_raw_run(directory)
    write_record(directory.assembled, record_of(raw))
    if raw.spec.world_size <= MOST_RANKS:
        with suppress(NotWritten, ValueError):  # the record matters
            write_tables(raw)
    print(f"written: {directory.assembled}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
