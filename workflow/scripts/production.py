"""Train at the scale that the ladder has proven: submit the links of a chain one after the other, and follow them.

Progress goes to stderr. The exit code is 0 if the training is complete, 1 if the chain stops before, with the cause.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.climb.production import run_own_link, run_production, run_rehearsal
from ddp_ladder.common.command import job_command, option
from ddp_ladder.plan.short_runs import planned
from ddp_ladder.production.chain import chain_directory
from ddp_ladder.production.plan import production_of, rehearsal_plan
from ddp_ladder.production.rehearsal import rehearsal_directory
from ddp_ladder.settings.load import Sources, add_options


def add_where(parser: ArgumentParser) -> None:
    """Add the options that say where the jobs run."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--on", choices=("slurm", "local"), help="local: here, or in this allocation")
    where.add_argument("--link-of", type=Path, metavar="SCRIPT", help="this job is one link; SCRIPT is the next one's")


@job_command(
    "production.py --on slurm",
    add_options,
    option("--rehearse", action="store_true", help="only test whether the script goes on where it saved"),
    add_where,
    option("--since", type=int, metavar="N", help="the links that the first job of the chain found"),
)
def main(arguments: Namespace) -> int:
    """Run the chain. Exit code 128 + n if signal n ended this start."""
    settings = Sources.of(arguments).load()
    results = Path(settings.experiment.results)
    on_slurm = arguments.on == "slurm"
    if arguments.rehearse:
        return run_rehearsal(rehearsal_plan(settings), settings, rehearsal_directory(results), on_slurm)
    production = production_of(settings, planned(settings), results, on_slurm=on_slurm or arguments.link_of is not None)
    directory = chain_directory(results)
    if arguments.link_of is not None:
        return run_own_link(production, settings, directory, arguments.link_of, arguments.since)
    return run_production(production, settings, directory, on_slurm)


if __name__ == "__main__":
    sys.exit(main())
