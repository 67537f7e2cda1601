"""Write batch scripts: job.sh of every run, which needs no Snakemake, and climb.sh, the whole climb as one job; of a
production whose hours are set production.sh, a link of its chain.

Runs nothing.
"""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.common.command import PLAN, command
from ddp_ladder.common.files import RunDirectory, make_directory, write_atomically, write_json
from ddp_ladder.common.formats import count
from ddp_ladder.common.messages import UserError
from ddp_ladder.plan.plan import Plan, read_plan
from ddp_ladder.production.chain import chain_directory
from ddp_ladder.production.plan import production_of
from ddp_ladder.run.job_script import PRODUCTION_SCRIPT, climb_script, production_script, write_job_script
from ddp_ladder.settings.load import OVERLAY, Sources, add_options
from ddp_ladder_instrument.redaction import FROM_ENVIRONMENT


@command("eject.py --plan results/plan.json", PLAN, add_options)
def main(arguments: Namespace) -> int:
    """Write the scripts, print where they are and how to start one."""
    plan, runs = read_plan(arguments.plan), arguments.plan.parent / "runs"
    print(f"writing {count(len(plan.runs), 'script')} of runs", flush=True)
    one_node: Path | None = None  # a ladder may start at several nodes
    for job in plan.jobs:
        for spec in job.runs:
            written = write_job_script(job, spec, RunDirectory(runs / spec.name))
            print(f"written: {written}", flush=True)
            if spec.nodes == 1:
                one_node = written
    climb = arguments.plan.parent / "climb.sh"
    sources = Sources.of(arguments)
    if sources.config is None:
        experiment = climb.with_name("climb.config.json")
        overlay = {key: value for key, value in sources.overrides.items() if key == OVERLAY}
        write_json(experiment, {key: value for key, value in sources.overrides.items() if key != OVERLAY})
        sources = replace(sources, config=experiment, overrides=overlay)
    text = climb_script(plan, sources, _secrets(plan), Path.cwd(), Path(sys.executable))
    write_atomically(climb, text, mode=0o777)
    print(f"written: {climb}")
    production = _write_production(plan, sources, arguments.plan.parent)
    if plan.batch_search:
        print(
            "\nwarning: the batch per GPU is not chosen yet, and the scripts of runs have the smallest: `snakemake fit`"
        )
    print(f"\n{len(plan.runs)} scripts, none of them started. To start one:\n    sbatch {shlex.quote(str(written))}")
    if one_node:
        print(f"or without Slurm, of those of one node:\n    bash {shlex.quote(str(one_node))} here")
    print(f"The whole climb as one job, with Snakemake on its first node:\n    sbatch {shlex.quote(str(climb))}")
    if production:
        print(
            f"Production, as a chain of jobs each of which submits the next:\n    sbatch {shlex.quote(str(production))}"
        )
    return 0


def _secrets(plan: Plan) -> list[str]:
    return sorted({name for run in plan.runs for name, value in run.env.items() if value == FROM_ENVIRONMENT})


def _write_production(ladder: Plan, sources: Sources, results: Path) -> Path | None:
    """Write production.sh if the settings allow a production; return its path."""
    settings = sources.load()
    if settings.experiment.production.up_to_hours is None:
        return None
    try:
        plan = production_of(settings, ladder, results).plan
    except UserError as error:
        print(f"\nwarning: no {PRODUCTION_SCRIPT}: {error}\n")
        return None
    directory = chain_directory(results)
    make_directory(directory / "logs")  # Slurm makes none for the job's log
    text = production_script(plan, sources, _secrets(plan), Path.cwd(), Path(sys.executable))
    write_atomically(script := directory / PRODUCTION_SCRIPT, text, mode=0o777)
    print(f"written: {script}")
    return script


if __name__ == "__main__":
    sys.exit(main())
