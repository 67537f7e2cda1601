"""Print the result of a preflight, or of the search for the batch per GPU. Exit code 1 if the preflight failed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from ddp_ladder.common.command import command, parser_of, read_to_show
from ddp_ladder.common.formats import DASH, significant
from ddp_ladder.common.messages import box, for_terminal
from ddp_ladder.plan.fit import fit_text, read_fit
from ddp_ladder.preflight.result import PreflightResult, outcome, read_result


def long_text(result: PreflightResult) -> str:
    """Return the line, the tables of nodes, sizes and pairs of nodes, and a box for each finding."""
    parts = [f"{result.scale}: {outcome(result)}"]
    for rows in (result.nodes, result.sizes, result.pairs):
        if rows:
            table = pd.DataFrame([row.model_dump() for row in rows]).astype(object)
            parts.append(table.where(table.notna(), DASH).to_string(index=False, float_format=significant))
    boxes = (box(((one.severity, one.in_words), ("wanted", one.wanted), ("next", one.next))) for one in result.findings)
    return "\n\n".join((*parts, *boxes))


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = parser_of(__doc__, "result_table.py preflight results/preflight/2x4.json")
    parser.add_argument("kind", choices=["preflight", "fit"])
    parser.add_argument("result", type=Path, help="results/preflight/<scale>.json, results/fit/<scale>.json")
    arguments = parser.parse_args(argv)
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
