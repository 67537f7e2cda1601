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
    for job in plan.jobs:
        for spec in job.runs:
            written = write_job_script(job, spec, RunDirectory(runs / spec.name))
            print(f"written: {written}")
            if spec.nodes == 1:
                one_node = written
    print(f"\n{len(plan.runs)} scripts, none of them started. To start one:\n    sbatch {shlex.quote(str(written))}")
    print(f"or without Slurm, of those of one node:\n    bash {shlex.quote(str(one_node))} here")
    return 0


if __name__ == "__main__":
    sys.exit(main())
