"""The steps of ranks and the samples of nodes as CSV files that people open. Nothing reads them here."""

from __future__ import annotations

from contextlib import suppress

from ddp_ladder.common.files import write_atomically
from ddp_ladder.records.raw_files import RawRun, steps_of_ranks
from ddp_ladder.records.steps import csv_of

MOST_RANKS = 64  # of a run whose tables are written unasked


def write_tables(raw: RawRun) -> None:
    """Write ranks/rank<k>.csv and nodes/node<k>.csv. Raises OSError (NotWritten too) or ValueError."""
    for rank, steps in steps_of_ranks(raw):
        write_atomically(raw.directory.ranks / f"rank{rank}.csv", csv_of(steps))
    for node_rank in range(len(raw.run.nodes)):
        path = raw.directory.samples(node_rank)
        if path.exists():  # of a monitor whose agent did not pack it, or written before
            continue
        with suppress(FileNotFoundError):  # not sampled
            write_atomically(path, raw.content.read(path, raw.run.first_agent(node_rank)))
