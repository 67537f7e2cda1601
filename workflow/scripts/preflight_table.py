"""Print the result of a preflight: figures, nodes, sizes, findings. Exit code 1 if it failed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_ladder.common.command import command
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.preflight.result import long_text, read_result


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python workflow/scripts/preflight_table.py results/preflight/2x4.json",
    )
    parser.add_argument("result", type=Path, help="results/preflight/<scale>.json")
    file = parser.parse_args(argv).result
    try:
        result = read_result(file)
    except (OSError, ValueError) as error:
        again = "run it again: snakemake preflight"
        raise UserError(Problem(str(file), "there is no preflight to show", found=str(error), next=again)) from error
    print(long_text(result))
    print(f"\nwritten: {file}")
    return 1 if result.failure else 0


if __name__ == "__main__":
    sys.exit(main())
