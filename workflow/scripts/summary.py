"""Say what the ladder has found so far: the table of scales, a closed gate, and where everything is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_ladder.command import command
from ddp_ladder.gate_file import closed_box
from ddp_ladder.headline import headline
from ddp_ladder.ladder_results import read_results
from ddp_ladder.plan_file import read_plan
from ddp_ladder.scaling import scale_points
from ddp_ladder.terminal_table import terminal_table


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Print the summary; writes nothing."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python workflow/scripts/summary.py --plan results/plan.json",
    )
    parser.add_argument("--plan", type=Path, required=True, help="plan.json; the results are beside it")
    parser.add_argument("--warning", default="", help="what has to be told beside it")
    arguments = parser.parse_args(argv)
    plan, results = read_plan(arguments.plan), arguments.plan.parent
    found = read_results(results, plan, arguments.warning)
    points = [point for point in scale_points(plan.runs, found.records, plan.may_differ) if not point.is_plain]
    report = results / "report"
    print()
    print(headline(found, points).text)
    print()
    print(terminal_table(points, found.gates, report if report.exists() else None))
    for gate in found.gates.values():
        if not gate.is_open:
            print(f"\n{closed_box(gate)}")
    for warning in found.warnings:
        print(f"warning: {warning}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
