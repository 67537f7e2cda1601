"""Compare the variants of a ladder with its default, or the results of the same code in two folders.

Examples:

    python workflow/scripts/compare.py --results results
    python workflow/scripts/compare.py old/results results

It reads plan.json and the records below runs/ of each folder, which may be copies from other machines, prints what
differs by more than chance, and writes it as comparison.csv, .md, .svg and .png into report/ in the results (of two
folders, in the second one: comparison_of_results.*).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.analysis.comparison import compare_results, compare_variants
from ddp_ladder.common.command import command, parser_of
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.report.comparison import terminal_text, write_comparison
from ddp_ladder.report.results import read_folder, read_folders

RESULTS = Path("results")


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write the comparison and print it."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("folders", nargs="*", metavar="FOLDER", help="two folders of results; none compares the variants")
    add("--results", type=Path, default=RESULTS, help="the ladder whose variants are compared (default: %(default)s)")
    add("--out", type=Path, help="where to write (default: report/ in the results, or in the second folder)")
    add("--warning", default="", help="a warning to print too")
    arguments = parser.parse_args(argv)
    if arguments.folders:
        folders = read_folders(arguments.folders)
        comparison, warnings = compare_results(*folders), [line for one in folders for line in one.warnings]
        out = arguments.out or Path(arguments.folders[-1]) / "report"
    else:
        found = read_folder(str(arguments.results))
        if len({run.variant for run in found.plan.runs if not run.is_plain}) < 2:
            raise UserError(_only_one_variant(arguments.results))
        comparison, warnings = compare_variants(found.plan, found.records), [arguments.warning, *found.warnings]
        out = arguments.out or arguments.results / "report"
    print(terminal_text(comparison, write_comparison(out, comparison)), flush=True)
    for warning in filter(None, warnings):
        print(f"warning: {warning}", file=sys.stderr)
    return 0


def _only_one_variant(results: Path) -> Problem:
    return Problem(
        str(results / "plan.json"),
        "there is one variant: nothing to compare",
        next="add `variants` to config/config.yaml and start snakemake again, or compare two folders of results: "
        "snakemake compare --config 'compare=[old/results, results]'",
    )


if __name__ == "__main__":
    sys.exit(main(None))
