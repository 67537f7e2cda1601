"""Predict the throughput of scales that were not measured, from a table of those that were; print JSON.

The table is a CSV file with the columns nodes, gpus_per_node and samples_per_s (of all GPUs together), and perhaps mode
(weak or strong; default: weak) and variant: results/report/scaling.csv is one. Several rows of one scale are its
repeats. With one --at and one mode the prediction itself is printed, otherwise an object with the list "predictions".
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.analysis.prediction import predict, read_series, scale_of
from ddp_ladder.common.command import command, parser_of
from ddp_ladder.common.messages import Problem, UserError


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Print the predictions; write nothing."""
    parser = parser_of(__doc__, "predict.py --table points.csv --at 8x4")
    parser.add_argument("--table", type=Path, required=True, help="CSV file of the measured scales")
    parser.add_argument("--at", action="append", default=[], metavar="8x4", help="scale to predict; may be repeated")
    parser.add_argument("--variant", help="of a table with several (default: default)")
    arguments = parser.parse_args(argv)
    scales = [scale_of(text) for text in arguments.at]
    if not scales:
        raise UserError(Problem("--at", "no scale to predict", next="add --at 8x4, or"))
    every = read_series(arguments.table, arguments.variant)
    found = [predict(series, scale).model_dump() for series in every for scale in scales]
    print(json.dumps(found[0] if len(found) == 1 else {"predictions": found}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
