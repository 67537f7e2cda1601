"""Write the report of a ladder from the records so far, and print its table.

Example, after a ladder or while one is climbing:

    python workflow/scripts/report.py --results results

It reads plan.json, the records below runs/ and the gates in gates/, all in the results directory,
and writes report/ there: index.html (open it in a browser), scaling.md (for a proposal),
scaling.csv, and the plots as SVG and PNG.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_ladder.common.command import command
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.plan.file import read_plan
from ddp_ladder.report.page import write_report
from ddp_ladder.report.results import read_results
from ddp_ladder.report.terminal_table import terminal_table

RESULTS = Path("results")


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write the report and print the table."""
    arguments = parse(argv)
    results: Path = arguments.results or (arguments.plan.parent if arguments.plan else RESULTS)
    plan = read_plan(arguments.plan or results / "plan.json")
    found = read_results(results, plan, arguments.warning)
    files = write_report(results, found)
    print(terminal_table(scale_points(plan.runs, found.records, plan.may_differ), found.gates, files[0].parent))
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--results",
        type=Path,
        help="the ladder's directory (default: that of the plan, or results)",
    )
    parser.add_argument("--plan", type=Path, help="default: plan.json in the results")
    parser.add_argument("--warning", default="", help="a warning for the top of the report")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(None))
