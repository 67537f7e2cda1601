"""Rehearse a chain: run its script twice in one job, and see whether the second start goes on where the first ended.

Progress goes to stderr. The exit code is 0 if there is a result, also a bad one.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import ddp_ladder.common.single_thread  # noqa: F401
from ddp_ladder.accounting.jobs import accounted
from ddp_ladder.common.command import command, parser_of
from ddp_ladder.common.messages import BEHIND_PIPE
from ddp_ladder.common.process import die_with_parent
from ddp_ladder.plan.plan import read_plan
from ddp_ladder.production.rehearsal import judge_rehearsal
from ddp_ladder.production.rehearsed import not_made, write_rehearsal
from ddp_ladder.records.record import Failure
from ddp_ladder.run.interruption import Interrupted
from ddp_ladder.run.job import context_of, holding_scale
from ddp_ladder.run.progress import LAST_WORDS_OF
from ddp_ladder.run.rehearse import run_twice
from ddp_ladder.settings.terms import REHEARSAL


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Rehearse. Exit code 128 + n if signal n interrupted it."""
    parser = parser_of(__doc__, "rehearse.py --plan results/production/rehearsal/plan.json --each 120 --warn 300")
    parser.add_argument("--plan", type=Path, required=True, help="plan.json of the rehearsal")
    parser.add_argument("--each", type=float, required=True, metavar="S", help="seconds until the signal")
    parser.add_argument("--warn", type=float, required=True, metavar="S", help="seconds from the signal to the end")
    arguments = parser.parse_args(argv)
    os.environ.pop(BEHIND_PIPE, None)  # the watch reads the job's log by its lines
    die_with_parent(signal.SIGTERM)  # a killed start must not leave a training behind
    directory, (job,) = arguments.plan.parent, read_plan(arguments.plan).jobs
    context = context_of(job, directory)
    try:
        with holding_scale(context), accounted(directory, job, context.nodes.job_id, REHEARSAL):
            starts = run_twice(context, arguments.each, arguments.warn)
            result = not_made(starts) if isinstance(starts, Failure) else judge_rehearsal(*starts)
            written = write_rehearsal(directory, job.runs[0], result)
    except Interrupted as interrupted:
        context.console.say(f"{context.label}: interrupted by {interrupted}; nothing is known of the script yet")
        return 128 + interrupted.signum
    context.console.say(f"{context.label}: {LAST_WORDS_OF[REHEARSAL]}")
    print(f"written: {written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
