"""Run one link of a chain: the script once, from where it has saved its state. A link's job executes this.

Progress goes to stderr, events to stdout. The exit code is 0 if the link left a record, also of a failure: the chain
judges.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.common.command import PLAN, job_command, option
from ddp_ladder.ledger.entries import HOUR_S
from ddp_ladder.production.chain import read_chain, read_chain_plan, read_links, used_hours
from ddp_ladder.production.slower import SpeedWatch
from ddp_ladder.run.job import carry_out, context_of, run_link
from ddp_ladder.run.progress import LinkConsole
from ddp_ladder.settings.terms import PRODUCTION


@job_command(
    "run_link.py --plan results/production/plan.json",
    PLAN,
    option("--minutes", type=int, help="the link's time limit (default: that of the plan)"),
)
def main(arguments: Namespace) -> int:
    """Run the link. Exit code 128 + n if signal n interrupted it."""
    directory = arguments.plan.parent
    chain, plan = read_chain(directory), read_chain_plan(directory)
    (job,) = plan.jobs
    if arguments.minutes is not None:
        job = replace(job, runtime_min=arguments.minutes)
    context, is_measured = context_of(job, directory), job.runs[0].instrument

    def work() -> list[Path]:
        *before, this = read_links(directory, plan, time.time(), context.nodes.job_id)
        hours, held = used_hours(before), chain.holding([*before, this])
        console = LinkConsole(
            this.number,
            chain.promised_samples_per_s,
            lambda held_s: held.used(hours + this.gpus * held_s / HOUR_S, job),
            is_measured,
        )
        watch, label = None, f"{context.label} link {this.number}"
        if is_measured:
            watch = SpeedWatch(chain, directory, this.number, label, console.say)
        try:
            run_link(replace(context, console=console, watch=watch, link=this.number), chain.warn_before_s)
        finally:
            console.status("")
        return [context.directory(job.runs[0]).record]

    return carry_out(context, PRODUCTION, work, "what the script has saved is kept")


if __name__ == "__main__":
    sys.exit(main())
