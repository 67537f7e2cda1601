"""Run all runs of one scale, one after the other, and leave a record of each.

A scale's job executes this. Progress goes to stderr, events to stdout. The exit code is 0 if every run left a record,
also of a failure: the gate judges.
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
from ddp_ladder.gates.gate import require_open_gate
from ddp_ladder.gates.verdict import closed_variants
from ddp_ladder.plan.file import read_plan
from ddp_ladder.records.run_records import RunRecords, as_made
from ddp_ladder.run.interruption import Interrupted
from ddp_ladder.run.job import context_of, holding_scale, run_scale
from ddp_ladder.run.progress import LAST_WORDS
from ddp_ladder.settings.terms import Scale


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the scale. Exit code 128 + n if signal n interrupted it."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python workflow/scripts/run_scale.py --plan results/plan.json --scale 1x2",
    )
    parser.add_argument("--plan", type=Path, required=True, help="plan.json")
    parser.add_argument("--scale", type=Scale.parse, required=True, help="nodes x GPUs per node, such as 2x4")
    arguments = parser.parse_args(argv)
    die_with_parent(signal.SIGTERM)  # a killed Snakemake must not leave a training behind
    results = arguments.plan.parent
    plan = as_made(read_plan(arguments.plan), RunRecords(results))
    job = plan.job(arguments.scale)
    before = plan.stage_before(job.stage)
    left_out = closed_variants(require_open_gate(plan, before, results)) if before else {}
    context = context_of(job, results)
    try:
        with holding_scale(context), accounted(results, job, context.nodes.job_id, "measure"):
            run_scale(context, plan, left_out)
    except Interrupted as interrupted:
        context.console.say(f"{context.label}: interrupted by {interrupted}; finished runs are kept")
        return 128 + interrupted.signum
    context.console.say(f"{context.label}: {LAST_WORDS}")
    for run in as_made(plan, RunRecords(results)).job(arguments.scale).runs:
        print(f"written: {context.directory(run).record}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
