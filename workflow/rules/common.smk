"""Settings, plan, and what all rules share: look-ups only, the logic is in workflow/scripts/ddp_ladder."""

import os
import sys
from pathlib import Path

SCRIPTS = Path(workflow.basedir) / "workflow" / "scripts"
sys.path.insert(0, str(SCRIPTS))
# `python` in the rules is the one that runs Snakemake, also where its environment is not activated.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

from ddp_ladder.ladder import Ladder
from ddp_ladder.messages import UserError
from ddp_ladder.plan_text import plan_text
from ddp_ladder.snakemake_settings import read_sources, stages_up_to


def script(name):
    """Path of a command line in workflow/scripts."""
    return str(SCRIPTS / name)


def stop(error):
    """End with a user's mistake as its message alone, without a traceback."""
    print(error, file=sys.stderr)
    sys.exit(1)


def climb(stage=None):
    """The gate that a target asks for, the last one for None; a dry run shows the plan up to it."""
    try:
        stages = stages_up_to(ladder.plan, stage, sources.config)
    except UserError as error:
        stop(error)
    if workflow.dryrun and workflow.is_main_process:
        print(plan_text(ladder.plan, stages), flush=True)
    return ladder.gate(stages[-1])


def say_what_was_found(write_report=False):
    """After the last job: the table of scales, the gates, the paths; a ladder that stopped early gets its report too."""
    plan = Path(ladder.results, "plan.json")
    if not plan.exists():
        return
    if write_report:
        shell("python {report:q} --plan {plan:q} >/dev/null", report=script("report.py"), plan=str(plan))
    shell("python {summary:q} --plan {plan:q}", summary=script("summary.py"), plan=str(plan))


# No `configfile:`: Snakemake's own reading turns 1:30:00 into 5400 and lets the last of two equal keys win.
try:
    sources = read_sources(workflow.config_settings.configfiles, workflow.config_settings.config)
    ladder = Ladder.of(sources.load())
except UserError as error:
    stop(error)
