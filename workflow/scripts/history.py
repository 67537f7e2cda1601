"""Show the same workload over software versions, dates and sites, in one table.

It reads archives of `snakemake archive`, or results directories, prints the table and writes it as history.csv. Each
scale is compared with the ladder before that measured it, with the fields of the fingerprint that changed.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.archive.archive import read_archive
from ddp_ladder.common.command import command, option
from ddp_ladder.common.files import write_atomically
from ddp_ladder.common.formats import grouped
from ddp_ladder.common.messages import Problem, UserError, for_terminal, notify
from ddp_ladder.ledger.jobs import read_rows
from ddp_ladder.plan.plan import read_plan
from ddp_ladder.report.comparison import Ladder, history, history_csv, history_text, in_order
from ddp_ladder.report.view import LadderResults, ReportView, read_results


@command(
    "history.py archive-lumi-2026-03-01.zip archive-lumi-2026-06-01.zip results",
    option("ladders", nargs="+", type=Path, metavar="ARCHIVE", help="an archive, or a results directory"),
    option("--out", type=Path, default=Path("history.csv"), help="default: %(default)s"),
)
def main(arguments: Namespace) -> int:
    """Write the CSV, and print what changed."""
    ladders = in_order([read(path) for path in arguments.ladders])
    check_workload(ladders)
    found = [*history(ladders)]
    write_atomically(arguments.out, history_csv(found))
    print(for_terminal(history_text(found), sys.stdout))
    print(f"written  {arguments.out}", flush=True)
    return 0


def read(path: Path) -> Ladder:
    """Read an archive or a results directory. Raises UserError."""
    if path.is_dir():
        return ladder_of(path, read_results(path, read_plan(path / "plan.json")), "")
    with tempfile.TemporaryDirectory() as part:
        manifest, results = read_archive(path, Path(part))
        return ladder_of(path, results, manifest.made_on)


def ladder_of(path: Path, results: LadderResults, made_on: str) -> Ladder:
    """Return what is compared; dated by the last job that measured, else by the archive."""
    rows = results.jobs or read_rows(results.directory)
    days = [row.ended_at[:10] for row in rows if row.kind == "measure" and row.runs_measured]
    for warning in results.warnings:
        notify(f"warning: {path}: {warning}")
    script = ReportView(results, date.today()).script
    records = tuple(results.records.values())
    return Ladder(str(path), results.plan.site, max(days, default=made_on), script, results.points, records)


def check_workload(ladders: Sequence[Ladder]) -> None:
    """Raise UserError if the ladders are of several workloads, or none was measured."""
    scripts = grouped((ladder.script, ladder.name) for ladder in ladders)
    if len(scripts) > 1:
        found = "; ".join(f"{script} in {', '.join(names)}" for script, names in scripts.items())
        advice = "one history for each script"
        raise UserError(Problem("history", "these ladders are of different workloads", found, next=advice))
    if not any(point for ladder in ladders for point in ladder.measured):
        names = ", ".join(ladder.name for ladder in ladders)
        raise UserError(Problem("history", "nothing was measured in these ladders", names))


if __name__ == "__main__":
    sys.exit(main(None))
