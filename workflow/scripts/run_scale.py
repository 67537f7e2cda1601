"""Run all runs of one scale, one after the other, and leave a record of each; with --preflight, only test it.

Where the batch per GPU is not chosen yet, it is searched first; with --fit, nothing else is done. A scale's job
executes this, and those of `snakemake preflight` and `snakemake fit`. Progress goes to stderr, events to stdout. The
exit code is 0 if every run left a record, or the test a result, also of a failure: the gate judges.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.assembly.run_records import RunRecords, as_made
from ddp_ladder.common.command import PLAN, job_command, option
from ddp_ladder.gates.gate import closed_variants, require_open_gate
from ddp_ladder.ledger.jobs import Kind
from ddp_ladder.plan.plan import read_plan
from ddp_ladder.plan.short_runs import fit_file
from ddp_ladder.preflight.result import result_file
from ddp_ladder.run.job import carry_out, context_of, run_preflight, run_scale
from ddp_ladder.run.short_runs import NoBatch, fitted, leave_all_out, make_witnesses
from ddp_ladder.settings.terms import Scale


@job_command(
    "run_scale.py --plan results/plan.json --scale 1x2",
    PLAN,
    option("--scale", type=Scale.parse, required=True, help="nodes x GPUs per node, such as 2x4"),
    option("--preflight", action="store_true", help="test nodes, network and collectives; train nothing"),
    option("--fit", action="store_true", help="only search the batch per GPU, before any run"),
)
def main(arguments: Namespace) -> int:
    """Run the scale. Exit code 128 + n if signal n interrupted it."""
    results = arguments.plan.parent
    plan = as_made(read_plan(arguments.plan), RunRecords(results))
    job = plan.job(arguments.scale)
    before = None if arguments.preflight else plan.stage_before(job.stage)
    left_out = closed_variants(require_open_gate(plan, before, results)) if before else {}
    context = context_of(job, results)
    kind: Kind = "preflight" if arguments.preflight else "fit" if arguments.fit else "measure"

    def work() -> list[Path]:
        if arguments.preflight:
            run_preflight(context)
            return [result_file(results, job.scale)]
        if arguments.fit:
            fitted(context, plan)
            return [fit_file(results, job.scale)]
        measured = plan
        try:
            chosen, measured = fitted(context, plan) if plan.batch_search else (context, plan)
            run_scale(chosen, measured, left_out, make_witnesses)
        except NoBatch as reason:
            leave_all_out(context, reason)
        runs = as_made(measured, RunRecords(results)).job(arguments.scale).runs
        return [context.directory(run).record for run in runs]

    return carry_out(context, kind, work, "finished runs are kept")


if __name__ == "__main__":
    sys.exit(main())
