"""Print the results so far: the table of scales, closed gates, and where everything is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_ladder.accounting.advice import terminal_lines
from ddp_ladder.accounting.jobs import read_rows
from ddp_ladder.analysis.forecast import error_rows, planned_forecasts
from ddp_ladder.analysis.prediction import outlooks
from ddp_ladder.common.command import command, parser_of
from ddp_ladder.common.formats import full_stop
from ddp_ladder.gates.verdict import closed_box
from ddp_ladder.plan.file import read_plan
from ddp_ladder.report.results import read_results
from ddp_ladder.report.terminal import terminal_table
from ddp_ladder.report.view import headline


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Print the summary; writes nothing."""
    parser = parser_of(__doc__, "summary.py --plan results/plan.json")
    parser.add_argument("--plan", type=Path, required=True, help="plan.json; the results are beside it")
    parser.add_argument("--warning", default="", help="a warning to print too")
    parser.add_argument("--log", default="", help="Snakemake's log, to be named")
    arguments = parser.parse_args(argv)
    plan, results = read_plan(arguments.plan), arguments.plan.parent
    found = read_results(results, plan, arguments.warning)
    points = [point for point in found.points if not point.is_plain]
    report = results / "report"
    print()
    print(headline(found).text)
    for one in outlooks(plan, points):
        print(f"Predicted, not measured: {full_stop(one.in_words)}")
    print()
    print(terminal_table(points, found.gates, report if report.exists() else None))
    for place, forecast, measured in error_rows(planned_forecasts(results, plan), points):
        print(f"forecast {place}: {forecast}; {measured}")
    for line in terminal_lines(plan, read_rows(results), results):
        print(line)
    if arguments.log:
        print(f"log      {arguments.log}")
    for warning in found.warnings:
        print(f"warning: {warning}")
    for gate in found.gates.values():
        if not gate.is_open:
            print(f"\n{closed_box(gate)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
