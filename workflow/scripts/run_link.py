"""Run one link of a chain: the script once, from where it has saved its state. A link's job executes this.

Progress goes to stderr, events to stdout. The exit code is 0 if the link left a record, also of a failure: the chain
judges.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ddp_ladder.common.single_thread  # noqa: F401
from ddp_ladder.accounting.jobs import accounted
from ddp_ladder.common.command import command, parser_of
from ddp_ladder.common.messages import BEHIND_PIPE
from ddp_ladder.common.process import die_with_parent
from ddp_ladder.plan.plan import read_plan
from ddp_ladder.production.chain import read_chain, read_links, unit_of, used_hours
from ddp_ladder.production.slower import SpeedWatch, windows_of_promise
from ddp_ladder.run.interruption import Interrupted
from ddp_ladder.run.job import context_of, holding_scale
from ddp_ladder.run.link import run_link
from ddp_ladder.run.progress import LAST_WORDS_OF, LinkConsole, LinkFacts
from ddp_ladder.settings.terms import PRODUCTION


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the link. Exit code 128 + n if signal n interrupted it."""
    parser = parser_of(__doc__, "run_link.py --plan results/production/plan.json")
    parser.add_argument("--plan", type=Path, required=True, help="plan.json of the chain")
    parser.add_argument("--minutes", type=int, help="the link's time limit (default: that of the plan)")
    arguments = parser.parse_args(argv)
    os.environ.pop(BEHIND_PIPE, None)  # the watch reads the job's log by its lines
    die_with_parent(signal.SIGTERM)  # a killed start must not leave a training behind
    directory = arguments.plan.parent
    chain, plan = read_chain(directory), read_plan(arguments.plan)
    (job,), before = plan.jobs, read_links(directory, plan, time.time())
    if arguments.minutes is not None:
        job = replace(job, runtime_min=arguments.minutes)
    hours, number = used_hours(before), len(before) + 1
    promised = chain.promised_samples_per_s
    facts = LinkFacts(number, promised, hours, chain.up_to_hours, chain.gpus, unit_of(job), job.runs[0].instrument)
    context = replace(context_of(job, directory), console=LinkConsole(facts))
    say, label = context.console.say, f"{context.label} link {number}"
    if job.runs[0].instrument:
        watch = SpeedWatch(chain, directory, number, label, say, lambda: windows_of_promise(chain, directory.parent))
        context = replace(context, watch=watch)
    try:
        with holding_scale(context), accounted(directory, job, context.nodes.job_id, PRODUCTION):
            run_link(context, chain.warn_before_s)
    except Interrupted as interrupted:
        context.console.say(f"{context.label}: interrupted by {interrupted}; what the script has saved is kept")
        return 128 + interrupted.signum
    context.console.say(f"{context.label}: {LAST_WORDS_OF[PRODUCTION]}")
    print(f"written: {context.directory(job.runs[0]).record}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
