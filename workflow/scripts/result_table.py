"""Print the result of a preflight, or of the search for the batch per GPU. Exit code 1 if the preflight failed."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from ddp_ladder.common.command import command, option, read_to_show
from ddp_ladder.common.formats import DASH, significant, text_table
from ddp_ladder.common.messages import box, for_terminal
from ddp_ladder.plan.short_runs import fit_text, read_fit
from ddp_ladder.preflight.result import PreflightResult, outcome, read_result


def long_text(result: PreflightResult) -> str:
    """Return the line, the tables of nodes, sizes and pairs of nodes, and a box for each finding."""
    parts = [f"{result.scale}: {outcome(result)}"]
    for rows in filter(None, (result.nodes, result.sizes, result.pairs)):
        names = [*type(rows[0]).model_fields]
        parts.append("\n".join(text_table(names, [[*map(_cell, dict(row).values())] for row in rows], names)))
    boxes = (
        box(((item.severity, item.in_words), ("wanted", item.wanted), ("next", item.next))) for item in result.findings
    )
    return "\n\n".join((*parts, *boxes))


def _cell(value: object) -> str:
    return DASH if value is None else significant(value) if isinstance(value, float) else str(value)


@command(
    "result_table.py preflight results/preflight/2x4.json",
    option("kind", choices=["preflight", "fit"]),
    option("result", type=Path, help="results/preflight/<scale>.json, results/fit/<scale>.json"),
)
def main(arguments: Namespace) -> int:
    """Print the table."""
    failed = False
    if arguments.kind == "fit":
        text = "\n".join(fit_text(read_to_show(read_fit, arguments.result, "search", "fit")))
    else:
        result = read_to_show(read_result, arguments.result, "preflight", "preflight")
        text, failed = long_text(result), result.failure is not None
    print(for_terminal(f"{text}\n\nwritten: {arguments.result}", sys.stdout))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
