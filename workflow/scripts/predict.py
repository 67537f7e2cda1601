"""Predict the throughput of scales that were not measured, from a table of those that were.

The table is a CSV file with the columns nodes, gpus_per_node and samples_per_s (of all GPUs together), and perhaps mode
(weak or strong; default: weak) and variant: results/report/scaling.csv is one. Several rows of one scale are its
repeats. With --json, one --at and one mode the prediction itself is printed, otherwise an object with the list
"predictions".
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.analysis.prediction import Prediction, predict, read_series, scale_of
from ddp_ladder.common.command import command, option
from ddp_ladder.common.formats import NARROW_SPACE, interval, percent, significant, text_table
from ddp_ladder.common.messages import Problem, UserError

HEADINGS = ("scale", "scaling", "samples/s", "90 % interval", "efficiency", "GPU h per million samples")


@command(
    "predict.py --table points.csv --at 8x4",
    option("--table", type=Path, required=True, help="CSV file of the measured scales"),
    option("--at", action="append", default=[], metavar="8x4", help="scale to predict; may be repeated"),
    option("--json", action="store_true", help="print JSON in place of a table"),
    option("--variant", help="of a table with several (default: default)"),
)
def main(arguments: Namespace) -> int:
    """Print the predictions; write nothing."""
    scales = [scale_of(text) for text in arguments.at]
    if not scales:
        raise UserError(Problem("--at", "no scale to predict", next="add --at 8x4, or several of them"))
    every = [predict(series, scale) for series in read_series(arguments.table, arguments.variant) for scale in scales]
    if arguments.json:
        data = [prediction.model_dump() for prediction in every]
        print(json.dumps(data[0] if len(data) == 1 else {"predictions": data}, indent=2))
    else:
        notes = dict.fromkeys(f"{prediction.scale}: {note}" for prediction in every for note in prediction.notes)
        print("\n".join((*text_table(HEADINGS, [*map(_cells, every)], right=HEADINGS[2:]), *notes)))
    return 0


def _cells(prediction: Prediction) -> list[str]:
    low, high, bound = prediction.samples_per_s_low, prediction.samples_per_s_high, prediction.samples_per_s_bound
    is_bound = prediction.samples_per_s is None and bound is not None
    rate = f"at most {significant(bound)}" if is_bound else significant(prediction.samples_per_s)
    ends = interval(significant(low), significant(high)) if low is not None and high is not None else ""
    of = "" if prediction.efficiency is None else f"{percent(prediction.efficiency)} of {prediction.baseline}"
    cells = [prediction.scale, prediction.mode, rate, ends, of, significant(prediction.gpu_hours_per_million_samples)]
    return [cell.replace(NARROW_SPACE, " ") for cell in cells]


if __name__ == "__main__":
    sys.exit(main())
