"""Print the search for the batch per GPU: a row for each batch that was tried, and the choice."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_ladder.common.command import command, parser_of, read_to_show
from ddp_ladder.plan.fit import fit_text, read_fit


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = parser_of(__doc__, "fit_table.py results/fit/1x1.json")
    parser.add_argument("result", type=Path, help="results/fit/<scale>.json")
    file = parser.parse_args(argv).result
    fit = read_to_show(read_fit, file, "search", "fit")
    print("\n".join(fit_text(fit)))
    print(f"\nwritten: {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
