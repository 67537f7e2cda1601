"""Test the nodes, the network and the collectives of one scale, without training.

The job of `snakemake preflight` executes this. Progress goes to stderr. The exit code is 0 if the test left a result,
also of a failure.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_ladder.accounting.jobs import accounted
from ddp_ladder.common.command import command
from ddp_ladder.common.process import die_with_parent
from ddp_ladder.plan.file import read_plan
from ddp_ladder.preflight.result import result_file
from ddp_ladder.run.interruption import Interrupted
from ddp_ladder.run.job import context_of, holding_scale, run_preflight
from ddp_ladder.run.progress import LAST_WORDS_OF_PREFLIGHT
from ddp_ladder.settings.terms import Scale


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the preflight. Exit code 128 + n if signal n interrupted it."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python workflow/scripts/run_preflight.py --plan results/plan.json --scale 2x4",
    )
    parser.add_argument("--plan", type=Path, required=True, help="plan.json")
    parser.add_argument("--scale", type=Scale.parse, required=True, help="nodes x GPUs per node, such as 2x4")
    arguments = parser.parse_args(argv)
    die_with_parent(signal.SIGTERM)  # a killed Snakemake must not leave processes behind
    job, results = read_plan(arguments.plan).job(arguments.scale), arguments.plan.parent
    context = context_of(job, results)
    try:
        with holding_scale(context), accounted(results, job, context.nodes.job_id, "preflight"):
            run_preflight(context)
    except Interrupted as interrupted:
        context.console.say(f"{context.label}: interrupted by {interrupted}")
        return 128 + interrupted.signum
    context.console.say(f"{context.label}: {LAST_WORDS_OF_PREFLIGHT}")
    print(f"written: {result_file(results, job.scale)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
