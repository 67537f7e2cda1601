"""Write the final report of production, planned against used, and print its first lines; also while a link runs.

Example:

    python workflow/scripts/final_report.py --results results

It reads results/production/ and what was planned before it (results/report/planned.json), and writes there
final_report.html (open it in a browser), final_report.md with the paragraph for the centre's report, and
final_report.csv with a row for each link.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from datetime import date
from pathlib import Path

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.common.command import RESULTS, command
from ddp_ladder.common.files import write_atomically
from ddp_ladder.common.messages import for_terminal, notify
from ddp_ladder.ledger.jobs import update_or_warn
from ddp_ladder.production.chain import chain_directory
from ddp_ladder.production.final import read_campaign
from ddp_ladder.report.document import as_markdown
from ddp_ladder.report.final import FinalReport


@command("", RESULTS)
def main(arguments: Namespace) -> int:
    """Write the final report and print where it is."""
    results: Path = arguments.results
    directory = chain_directory(results)
    print(f"reading  {directory}: jobs, records and raw files of the links", flush=True)
    for warning in update_or_warn(directory)[1]:
        notify(f"warning: {warning}")
    report = FinalReport(read_campaign(results, time.time()), date.today())
    if doubt := report.campaign.held.doubt:
        notify(f"warning: {directory}: {doubt}")
    files = {"html": report.html, "md": as_markdown(report.document), "csv": report.csv}
    lines = [report.headline]
    for kind, text in files.items():
        path = directory / f"final_report.{kind}"
        write_atomically(path, text)
        lines.append(f"written  {path}")
    print(for_terminal("\n".join(lines), sys.stdout), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(None))
