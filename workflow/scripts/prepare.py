"""Prepare the training data: run workload.prepare with the training's software, in its container if it has one."""

from __future__ import annotations

import signal
import sys
from argparse import Namespace
from pathlib import Path

from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.climb.start import prepare_data
from ddp_ladder.common.command import job_command, option
from ddp_ladder.common.messages import UserError
from ddp_ladder.settings.load import Sources, add_options


@job_command(
    "prepare.py -- prepare.py data/digits",
    add_options,
    option("command", nargs="+", help="script and arguments, after --"),
)
def main(arguments: Namespace) -> int:
    """Run it to its end. Exit code 128 + n if signal n ended it."""
    ladder = Ladder.of(Sources.of(arguments).load())
    try:
        code = prepare_data(ladder.plan.runs[0], ladder.settings.site, arguments.command, Path(ladder.data_marker))
    except UserError as error:
        print(error)  # to standard output, like the script's output: into the log, which a failed rule shows
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
