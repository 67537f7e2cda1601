"""Run all runs of one scale, one after the other, and leave a record of each.

A scale's job executes this. Progress goes to stderr, events to stdout. The exit code is 0 if every run left a record,
also of a failure: the gate judges.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ddp_ladder.common.command import command
from ddp_ladder.common.lifetime import die_with_parent
from ddp_ladder.gates.file import closed_variants
from ddp_ladder.gates.gate import require_open_gate
from ddp_ladder.plan.file import read_plan
from ddp_ladder.run.job import END_S, Context, Interrupted, raise_on_signals, run_scale
from ddp_ladder.run.nodes import Allocation, nodes_of
from ddp_ladder.run.progress import LAST_WORDS, RunConsole
from ddp_ladder.settings.terms import Scale
from ddp_ladder.slurm.allocation import time_left_s
from ddp_ladder.slurm.scale_lock import Locked, held

# Before Slurm ends the job, it has to end its agents, which may take all of END_S, join the logs and write the records,
# which takes long on a slow file system.
WRITING_S = 20
MARGIN_S = END_S + WRITING_S


def limits_s(runtime_s: float, slurm_s: float | None) -> tuple[float, float]:
    """Return the time for the scale's runs, and the time for agents to end after SIGTERM.

    slurm_s: until Slurm ends the job; None if it does not. If that is short, half of it is for the runs.
    """
    if slurm_s is None:
        return runtime_s, END_S
    margin_s = min(MARGIN_S, slurm_s / 2)
    return min(runtime_s, slurm_s - margin_s), END_S * margin_s / MARGIN_S


def lose(context: Context) -> None:
    """End this job: another one has taken over its runs, because this one showed no sign of life for long."""
    context.console.say(f"{context.job.stage} {context.job.scale}: another job has taken these runs over")
    os.kill(os.getpid(), signal.SIGTERM)


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
    plan = read_plan(arguments.plan)
    job = plan.job(arguments.scale)
    results = arguments.plan.parent
    before = plan.stage_before(job.stage)
    left_out = closed_variants(require_open_gate(plan, before, results)) if before else {}
    nodes = nodes_of(os.environ, job)
    runtime_s, slurm_s = 60.0 * job.runtime_min, None
    if isinstance(nodes, Allocation):
        # Asked now: in an allocation some of its time is over.
        slurm_s = time_left_s(nodes.job_id, time.monotonic() + runtime_s / 2)
    runs_s, end_s = limits_s(runtime_s, slurm_s)
    deadline_s = time.monotonic() + runs_s
    if isinstance(nodes, Allocation):
        nodes = replace(nodes, until_s=deadline_s)
    context = Context(job, results, nodes, deadline_s, RunConsole(len(job.runs)), end_s)
    raise_on_signals()
    try:
        label, say = f"{job.stage} {job.scale}", context.console.say
        with held(Locked.scale(results, str(job.scale), label), nodes.job_id, say, lost=lambda: lose(context)):
            run_scale(context, left_out)
    except Interrupted as interrupted:
        context.console.say(f"{job.stage} {job.scale}: interrupted by {interrupted}; finished runs are kept")
        return 128 + interrupted.signum
    context.console.say(f"{job.stage} {job.scale}: {LAST_WORDS}")
    for run in job.runs:
        print(f"written: {context.directory(run).record}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
