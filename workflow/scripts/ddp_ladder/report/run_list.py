"""The list of runs: all of them in runs.csv, and as many on the page as a browser shows without delay. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ddp_ladder.gates.figures import columns
from ddp_ladder.records.record import Record
from ddp_ladder.report.csv_text import csv_text

MOST_LISTED = 500  # a row of the page is about 1 KB


def listed_runs(runs: Sequence[Record]) -> tuple[Record, ...]:
    """Return the runs of the page, in their order; of too many, those that failed come first."""
    if len(runs) <= MOST_LISTED:
        return tuple(runs)
    failed_first = sorted(range(len(runs)), key=lambda k: runs[k].status == "ok")
    return tuple(runs[k] for k in sorted(failed_first[:MOST_LISTED]))


def runs_table(runs: Sequence[Record]) -> str:
    """Return runs.csv: one row for each run with a record."""
    figures = [(column.key, column.of_run) for column in columns("runs") if column.of_run]
    rows = []
    for run in runs:
        job = (run.job.id, run.job.attempt) if run.job else (None, None)
        status = run.status if run.job else "not run"
        rows.append([run.spec.name, status, *job, " ".join(run.world.hosts), *(of_run(run) for _, of_run in figures)])
    return csv_text(["run", "status", "job", "attempt", "hosts", *(key for key, _ in figures)], rows)
