"""Write batch scripts: job.sh of every run, which needs nothing of Snakemake, and climb.sh, the whole climb as one job.

Runs nothing.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_ladder.climb_script import climb_script
from ddp_ladder.command import command
from ddp_ladder.eject import write_job_script
from ddp_ladder.files import RunDirectory, write_atomically
from ddp_ladder.plan_file import read_plan
from ddp_ladder.snakemake_settings import CLUSTER, CONFIG, Sources


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write the scripts, say where they are and how to start one."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python workflow/scripts/eject.py --plan results/plan.json",
    )
    parser.add_argument("--plan", type=Path, required=True, help="plan.json; the runs are beside it")
    parser.add_argument("--config", type=Path, default=CONFIG, help="experiment that climb.sh starts with")
    parser.add_argument("--cluster", type=Path, default=CLUSTER, help="site that climb.sh starts with")
    parser.add_argument("--overrides", type=json.loads, default={}, help="JSON object of values that replace config's")
    arguments = parser.parse_args(argv)
    plan, runs = read_plan(arguments.plan), arguments.plan.parent / "runs"
    for job in plan.jobs:
        for spec in job.runs:
            written = write_job_script(job, spec, RunDirectory(runs / spec.name))
            print(f"written: {written}")
            if spec.nodes == 1:
                one_node = written
    climb = arguments.plan.parent / "climb.sh"
    sources = Sources(arguments.config, arguments.cluster, arguments.overrides)
    write_atomically(climb, climb_script(plan, sources, Path.cwd(), Path(sys.executable)), mode=0o777)
    print(f"written: {climb}")
    print(f"\n{len(plan.runs)} scripts, none of them started. To start one:\n    sbatch {shlex.quote(str(written))}")
    print(f"or without Slurm, of those of one node:\n    bash {shlex.quote(str(one_node))} here")
    print(f"The whole climb as one job, with Snakemake on its first node:\n    sbatch {shlex.quote(str(climb))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
