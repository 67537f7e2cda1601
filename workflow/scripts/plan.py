"""Write the plan: every run of every stage, resolved from config.yaml and cluster.yaml."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_ladder.command import command
from ddp_ladder.files import write_json
from ddp_ladder.plan import make_plan
from ddp_ladder.plan_text import plan_text
from ddp_ladder.run_records import RunRecords
from ddp_ladder.settings_loader import load_settings
from ddp_ladder.snakemake_settings import CLUSTER, CONFIG
from ddp_ladder.to_do import runs_to_do


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Read the settings, write plan.json, print the plan."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python workflow/scripts/plan.py --out results/plan.json",
    )
    add = parser.add_argument
    add("--config", type=Path, default=CONFIG, help="the experiment (default: %(default)s)")
    add("--cluster", type=Path, default=CLUSTER, help="the site (default: %(default)s)")
    add("--overrides", type=json.loads, default={}, metavar="JSON", help="""such as '{"repeats": 1}'""")
    add("--out", type=Path, required=True, help="plan.json to write")
    arguments = parser.parse_args(argv)
    plan = make_plan(load_settings(arguments.config, arguments.cluster, arguments.overrides))
    write_json(arguments.out, plan.to_json())
    print(plan_text(plan, plan.stages, runs_to_do(plan, RunRecords(arguments.out.parent))))
    print(f"\nwritten: {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
