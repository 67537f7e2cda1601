"""Settings, plan, and what all rules share: look-ups only, the logic is in workflow/scripts/ddp_ladder."""

import os
import sys
from pathlib import Path

from snakemake.executors.local import Executor as LocalExecutor
from snakemake.settings.enums import Quietness
from snakemake_executor_plugin_slurm import Executor as SlurmExecutor

SCRIPTS = Path(workflow.basedir) / "workflow" / "scripts"
sys.path.insert(0, str(SCRIPTS))

from ddp_ladder.allocation import check_allocation
from ddp_ladder.command import print_what_can_be_printed, put_this_python_first
from ddp_ladder.files import NotWritten, check_room
from ddp_ladder.interrupts import end_on_signals, pass_on_at_cancel
from ddp_ladder.ladder import Ladder
from ddp_ladder.messages import UserError
from ddp_ladder.plan_text import plan_text
from ddp_ladder.quiet import quieten, tell_of_full_disks
from ddp_ladder.slurm_executor import replace_executor_methods
from ddp_ladder.snakemake_lock import replace_lock
from ddp_ladder.snakemake_settings import check_checkout, read_sources, stages_up_to

print_what_can_be_printed()
put_this_python_first()
tell_of_full_disks()
if workflow.is_main_process:
    end_on_signals()
    pass_on_at_cancel(LocalExecutor)


def snakemakes_talk_is_shown():
    """In a dry run, which is the plan, only with --printshellcmds or --verbose; else where no profile asks for quiet."""
    settings = workflow.output_settings
    if workflow.dryrun:
        return settings.printshellcmds or settings.verbose
    return Quietness.PROGRESS not in (settings.quiet or ())


quieten(snakemakes_talk_is_shown)


def script(name):
    """Path of a command line in workflow/scripts."""
    return str(SCRIPTS / name)


def stop(error):
    """End with a user's mistake as its message alone, without a traceback."""
    print(error, file=sys.stderr)
    sys.exit(1)


def climb(stage=None):
    """What a target asks for: the gates up to a stage, all for None; each is judged anew, and waits for what is to do.

    A dry run also shows the plan; any other is compared with the allocation where the scales are to be its steps.
    """
    in_allocation = "SLURM_JOB_ID" in os.environ and workflow.executor_plugin.name == "local"
    wants_allocation = in_allocation or "allocation" in workflow.global_resources
    try:
        stages = stages_up_to(ladder.plan, stage, sources.config)
        if wants_allocation and workflow.is_main_process and not workflow.dryrun:
            check_allocation(ladder.plan, stages, os.environ, str(sources.cluster))
    except UserError as error:
        stop(error)
    if workflow.is_main_process:
        for announcement in ladder.announcements(stages):
            print(announcement, file=sys.stderr)
        if workflow.dryrun:
            print(plan_text(ladder.plan, stages, ladder.to_do), flush=True)
    return [ladder.gate(each) for each in stages]


def anew(files, after):
    """Inputs of a job that is run wherever it is asked for, to make these files: Snakemake's time stamps, parameters and
    memory decide nothing. Not in the jobs' own processes, which are told what to run.
    """
    if workflow.is_main_process:
        workflow.dag.forcefiles.update(files)
    return after


def is_for(*targets):
    """Whether snakemake was asked for one of these targets."""
    return any(each.name in targets for each in workflow.dag.targetrules)


def say_what_was_found():
    """After the last job: the table of scales, the gates, the paths."""
    plan, summary_script, changes = Path(ladder.results, "plan.json"), script("summary.py"), ladder.changes_since_plan
    if plan.exists():
        shell("python {summary_script:q} --plan {plan:q} --warning={changes:q}")


def judge_what_there_is():
    """A ladder that stopped early gets its closed gate and its report all the same."""
    plan, gate_script, report_script = Path(ladder.results, "plan.json"), script("gate.py"), script("report.py")
    if plan.exists():
        for stage in ladder.stages_cut_short():
            # 1: the gate is closed, as it has to be.
            shell("python {gate_script:q} --plan {plan:q} --stage {stage} >/dev/null || [ $? -eq 1 ]")
        shell("python {report_script:q} --plan {plan:q} >/dev/null")


# No `configfile:`: Snakemake's own reading turns 1:30:00 into 5400 and lets the last of two equal keys win.
try:
    check_checkout(Path(workflow.basedir), Path.cwd())
    sources = read_sources(workflow.config_settings.configfiles, workflow.config_settings.config)
    ladder = Ladder.of(sources.load())
    if workflow.is_main_process and not workflow.dryrun:
        check_room(Path(".snakemake"))
        if "doctor" not in sys.argv:  # which has its own words for it
            check_room(Path(ladder.results))
except NotWritten as error:
    stop(error.problem)
except UserError as error:
    stop(error)

replace_executor_methods(SlurmExecutor, Path(ladder.results), ladder.stage_of)
if workflow.is_main_process:
    replace_lock(workflow, ladder)
