"""Run all runs of one scale, one after the other, and leave a record of each; with --preflight, only test it.

Where the batch per GPU is not chosen yet, it is searched first; with --fit, nothing else is done. A scale's job
executes this, and those of `snakemake preflight` and `snakemake fit`. Progress goes to stderr, events to stdout. The
exit code is 0 if every run left a record, or the test a result, also of a failure: the gate judges.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import ddp_ladder.common.single_thread  # noqa: F401
from ddp_ladder.accounting.jobs import Kind, accounted
from ddp_ladder.assembly.run_records import RunRecords, as_made
from ddp_ladder.common.command import command, parser_of
from ddp_ladder.common.messages import BEHIND_PIPE
from ddp_ladder.common.process import die_with_parent
from ddp_ladder.gates.gate import require_open_gate
from ddp_ladder.gates.verdict import closed_variants
from ddp_ladder.plan.fit import fit_file
from ddp_ladder.plan.plan import read_plan
from ddp_ladder.preflight.result import result_file
from ddp_ladder.run.fit import NoBatch, fitted, leave_all_out
from ddp_ladder.run.interruption import Interrupted
from ddp_ladder.run.job import context_of, holding_scale, run_preflight, run_scale
from ddp_ladder.run.progress import LAST_WORDS_OF
from ddp_ladder.settings.terms import Scale


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the scale. Exit code 128 + n if signal n interrupted it."""
    parser = parser_of(__doc__, "run_scale.py --plan results/plan.json --scale 1x2")
    parser.add_argument("--plan", type=Path, required=True, help="plan.json")
    parser.add_argument("--scale", type=Scale.parse, required=True, help="nodes x GPUs per node, such as 2x4")
    parser.add_argument("--preflight", action="store_true", help="test nodes, network and collectives; train nothing")
    parser.add_argument("--fit", action="store_true", help="only search the batch per GPU, before any run")
    arguments = parser.parse_args(argv)
    os.environ.pop(BEHIND_PIPE, None)  # the watch reads the job's log by its lines
    die_with_parent(signal.SIGTERM)  # a killed Snakemake must not leave a training behind
    results = arguments.plan.parent
    plan = as_made(read_plan(arguments.plan), RunRecords(results))
    job = plan.job(arguments.scale)
    before = None if arguments.preflight else plan.stage_before(job.stage)
    left_out = closed_variants(require_open_gate(plan, before, results)) if before else {}
    context = context_of(job, results)
    kind: Kind = "preflight" if arguments.preflight else "fit" if arguments.fit else "measure"
    try:
        with holding_scale(context), accounted(results, job, context.nodes.job_id, kind):
            if arguments.preflight:
                run_preflight(context)
            elif arguments.fit:
                fitted(context, plan)
            elif plan.batch_search is None:
                run_scale(context, plan, left_out)
            else:
                try:
                    context, plan = fitted(context, plan)
                    run_scale(context, plan, left_out)
                except NoBatch as reason:
                    leave_all_out(context, reason)
    except Interrupted as interrupted:
        context.console.say(f"{context.label}: interrupted by {interrupted}; finished runs are kept")
        return 128 + interrupted.signum
    context.console.say(f"{context.label}: {LAST_WORDS_OF[kind]}")
    if kind != "measure":
        print(f"written: {(result_file if arguments.preflight else fit_file)(results, job.scale)}")
        return 0
    for run in as_made(plan, RunRecords(results)).job(arguments.scale).runs:
        print(f"written: {context.directory(run).record}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
