"""Write the plan: every run of every stage, resolved from config.yaml and cluster.yaml."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.assembly.run_records import RunRecords, as_made
from ddp_ladder.climb.ladder import runs_to_do, witnesses_to_do
from ddp_ladder.common.command import command, option
from ddp_ladder.common.files import write_json
from ddp_ladder.plan.short_runs import planned
from ddp_ladder.plan.text import plan_text
from ddp_ladder.settings.load import Sources, add_options


@command(
    "plan.py --out results/plan.json", add_options, option("--out", type=Path, required=True, help="plan.json to write")
)
def main(arguments: Namespace) -> int:
    """Read the settings, write plan.json, print the plan."""
    plan = planned(Sources.of(arguments).load())
    write_json(arguments.out, plan.to_json())
    runs = RunRecords(arguments.out.parent)
    to_do = runs_to_do(plan, runs)
    print(plan_text(as_made(plan, runs), plan.stages, to_do, witnesses_to_do(plan, to_do, runs.results)))
    print(f"\nwritten: {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
