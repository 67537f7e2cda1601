"""Rehearse a chain: run its script twice in one job, and see whether the second start goes on where the first ended.

Progress goes to stderr. The exit code is 0 if there is a result, also a bad one.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.common.command import PLAN, job_command, option
from ddp_ladder.plan.plan import read_plan
from ddp_ladder.production.rehearsal import judge_rehearsal, not_made, write_rehearsal
from ddp_ladder.records.record import Failure
from ddp_ladder.run.job import carry_out, context_of, run_twice
from ddp_ladder.settings.terms import REHEARSAL


@job_command(
    "rehearse.py --plan results/production/rehearsal/plan.json --each 120 --warn 300",
    PLAN,
    option("--each", type=float, required=True, metavar="S", help="seconds until the signal"),
    option("--warn", type=float, required=True, metavar="S", help="seconds from the signal to the end"),
)
def main(arguments: Namespace) -> int:
    """Rehearse. Exit code 128 + n if signal n interrupted it."""
    plan = read_plan(arguments.plan, "run `snakemake rehearsal`, which writes it again")
    directory, (job,) = arguments.plan.parent, plan.jobs
    context = context_of(job, directory)

    def rehearse() -> list[Path]:
        starts = run_twice(context, arguments.each, arguments.warn)
        found = [not_made(starts)] if isinstance(starts, Failure) else judge_rehearsal(*starts)
        return [write_rehearsal(directory, job.runs[0], found)]

    return carry_out(context, REHEARSAL, rehearse, "nothing is known of the script yet")


if __name__ == "__main__":
    sys.exit(main())
