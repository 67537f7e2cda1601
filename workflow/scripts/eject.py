"""Write job.sh of every run of the plan: batch scripts that need nothing of Snakemake. Runs nothing."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_ladder.command import command
from ddp_ladder.eject import write_job_script
from ddp_ladder.files import RunDirectory
from ddp_ladder.nodes import LOCAL_SITE
from ddp_ladder.plan_file import read_plan


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write the scripts, say where they are and how to start one."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python workflow/scripts/eject.py --plan results/plan.json",
    )
    parser.add_argument("--plan", type=Path, required=True, help="plan.json; the runs are beside it")
    arguments = parser.parse_args(argv)
    plan, runs = read_plan(arguments.plan), arguments.plan.parent / "runs"
    start, most_nodes = ("bash", 1) if plan.site == LOCAL_SITE else ("sbatch", plan.jobs[-1].scale.nodes)
    for job in plan.jobs:
        for spec in job.runs:
            written = write_job_script(plan.site, job, spec, RunDirectory(runs / spec.name))
            print(f"written: {written}")
            if spec.nodes <= most_nodes:
                example = written
    print(f"\n{len(plan.runs)} scripts, none of them started. To start one:\n    {start} {shlex.quote(str(example))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
