"""Compare the variants of a ladder with its default.

It reads plan.json and the records below runs/ in the results directory, prints what differs by more than chance, and
writes it as report/comparison.csv there.
"""

from __future__ import annotations

import sys
from argparse import Namespace

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.assembly.run_records import RunRecords, as_made
from ddp_ladder.common.command import RESULTS, command, option
from ddp_ladder.common.files import write_atomically
from ddp_ladder.common.messages import Problem, UserError, notify
from ddp_ladder.plan.plan import read_plan
from ddp_ladder.report.comparison import compare_variants, comparison_csv, terminal_text
from ddp_ladder.report.view import believed_records


@command("compare.py --results results", RESULTS, option("--warning", default="", help="a warning to print too"))
def main(arguments: Namespace) -> int:
    """Write the comparison and print it."""
    runs = RunRecords(arguments.results)
    plan = as_made(read_plan(runs.results / "plan.json"), runs)
    if len({run.variant for run in plan.runs if not run.is_plain}) < 2:
        what, advice = "there is one variant: nothing to compare", "add `variants` to config/config.yaml and start"
        raise UserError(Problem(str(runs.results / "plan.json"), what, next=f"{advice} snakemake again"))
    believed = believed_records(runs, plan.runs)
    comparison = compare_variants(plan, believed.records)
    file = runs.results / "report/comparison.csv"
    write_atomically(file, comparison_csv(comparison))
    print(terminal_text(comparison, file), flush=True)
    for warning in filter(None, [arguments.warning, *believed.warnings]):
        notify(f"warning: {warning}")
    return 0


if __name__ == "__main__":
    sys.exit(main(None))
