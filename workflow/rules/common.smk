"""Settings, plan, and look-ups for all rules. The logic is in workflow/scripts/ddp_ladder."""

import os
import sys
import tarfile
import tempfile
from pathlib import Path

from snakemake.path_modifier import PathModifier
from snakemake.sourcecache import HostingProviderFile, LocalSourceFile


def own_directory(here):
    """Return the directory of ddp-ladder; if Snakemake reads it from a repository, a copy of that commit."""
    if isinstance(here, LocalSourceFile):
        return Path(here).parents[1]
    if not isinstance(here, HostingProviderFile):
        sys.exit(f"{here}: ddp-ladder is more than its Snakefile; name it as github(...), gitlab(...) or a local clone")
    repository = here.hosted_repo.repo
    commit = repository.commit(here.ref).hexsha
    copy = Path(".snakemake", "ddp-ladder", commit).absolute()
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=copy.parent) as part, tempfile.TemporaryFile() as archive:
            repository.archive(archive, commit)
            archive.seek(0)
            tarfile.open(fileobj=archive).extractall(f"{part}/files")
            os.rename(f"{part}/files", copy)
    return copy


OWN = own_directory(workflow.current_basedir)
SCRIPTS = OWN / "workflow" / "scripts"
sys.path.insert(0, str(SCRIPTS))
is_module = not workflow.modifier.is_main_snakefile()

import ddp_ladder.common.requirements
from ddp_ladder.slurm.query import check_allocation
from ddp_ladder.climb.start import announcements, boxes, warnings_before_runs
from ddp_ladder.common.files import NotWritten, check_room, shown_path
from ddp_ladder.climb.ladder import forecast_text
from ddp_ladder.climb.snakemake import ended_by
from ddp_ladder.climb.ladder import Ladder, preflight_scale, stages_up_to
from ddp_ladder.climb.start import GateNotices, Notices
from ddp_ladder.climb.production import production_text
from ddp_ladder.production.plan import rehearsal_text
from ddp_ladder.common.messages import BEHIND_PIPE, UserError, columns, for_terminal, notify, stop
from ddp_ladder.plan.text import plan_text
from ddp_ladder.settings.checks import check_variables
from ddp_ladder.climb.snakemake import patch_execution, patch_process, shows_plan
from ddp_ladder.settings.load import CLUSTER, OF_NO_SITE, WITHOUT_TRAINING, module_sources, moved, read_sources

if workflow.is_main_process and sys.stdout.isatty():
    os.environ[BEHIND_PIPE] = str(columns())
failed_jobs = patch_process(workflow, is_module)
rule_name = workflow.modifier.modify_rulename  # in a module, `use rule * from ladder as ladder_*`
quick_targets = [rule_name(name) for name in WITHOUT_TRAINING]


def script(name):
    """Return the path of a program in workflow/scripts."""
    return str(SCRIPTS / name)


def warn_before_runs(stages):
    """Print what may spoil the runs of these stages, in a start that runs something. Raises UserError."""
    if workflow.is_main_process and workflow.executor_plugin:
        # Without Slurm they run on this machine.
        on_nodes = workflow.executor_plugin.name != "local" or "SLURM_JOB_ID" in os.environ
        for problem in warnings_before_runs(ladder, stages, on_nodes, workflow.dryrun):
            notify(f"warning: {problem}")


def check_fits(jobs):
    """Check that all jobs fit into the allocation, if this start is inside one or its profile asks for one."""
    executor = workflow.executor_plugin.name if workflow.executor_plugin else None  # None: --report and the like
    in_allocation = "SLURM_JOB_ID" in os.environ and executor == "local"
    wants_allocation = in_allocation or "allocation" in workflow.global_resources
    if executor and wants_allocation and workflow.is_main_process and not workflow.dryrun:
        check_allocation(jobs, os.environ, str(sources.cluster))


def climb(stage=None):
    """Return the inputs of a target: the gates up to a stage, all for None. Each is judged again, after its records.

    A dry run also prints the plan.
    """
    try:
        stages = stages_up_to(ladder.plan, stage, ladder.settings.experiment.file)
        check_fits([job for each in stages for job in ladder.plan.stage_jobs(each)])
        warn_before_runs(stages)
    except UserError as error:
        stop(error)
    if workflow.is_main_process:
        for announcement in announcements(ladder, stages):
            notify(announcement)
        if workflow.dryrun and (is_module or shows_plan(workflow)):
            text = plan_text(ladder.plan_as_made, stages, ladder.to_do, ladder.witnesses)
            text += forecast_text(ladder.plan, stages, ladder.to_do, Path(ladder.results))
            print(for_terminal(text, sys.stdout), flush=True)
    return [ladder.gate(each) for each in stages]


def asked_preflight():
    """Return the result of the scale that `snakemake preflight` tests; it is made anew."""
    try:
        if workflow.is_main_process and workflow.executor_plugin:
            for problem in check_variables(ladder.settings, os.environ):
                notify(f"warning: {problem}")
        file = ladder.settings.experiment.file
        scale = preflight_scale(ladder.plan, sources.preflight_scale, file)
        check_fits([ladder.job(scale)])
        return ladder.preflight_file(scale)
    except UserError as error:
        stop(error)


def asked_fit():
    """Return the file of the search for the batch; nothing if an earlier search has chosen it."""
    try:
        wanted = ladder.fit_to_make()
        if wanted:
            check_fits([ladder.plan.job(ladder.plan.first_scale)])
            warn_before_runs(ladder.plan.stages[:1])
        return wanted
    except UserError as error:
        stop(error)


def awaited_records(stage):
    """Return the records that a stage's gate waits for; for Snakemake's report and graphs, which run nothing, all."""
    return ladder.awaited_records(stage) if workflow.executor_plugin else ladder.stage_records(stage)


def asked(text_of):
    """Check what production or its rehearsal does; a dry run also prints it. text_of: says it."""
    try:
        text = text_of()
        if workflow.is_main_process and workflow.dryrun:
            print(for_terminal(text, sys.stdout), flush=True)
    except UserError as error:
        stop(error)
    return ladder.prepared_data


def force(files, after):
    """Return ``after``, inputs of a job that makes these files. The job runs whatever Snakemake's time stamps, parameters
    and metadata say. In the jobs' own processes nothing is forced: their targets are given.
    """
    if workflow.is_main_process:
        workflow.dag.forcefiles.update(files)
    return after


def reported():
    """Return the options of report.py that name what it shows."""
    # The results may belong to earlier settings.
    return [f"--plan={ladder.results}/plan.json", f"--warning={ladder.changes_since_plan}"]


def executor_name():
    """Return where the links of production run: jobs of Slurm, or processes of this machine or allocation."""
    return "slurm" if workflow.executor_plugin and workflow.executor_plugin.name == "slurm" else "local"


def is_for(*targets):
    """Return True if one of these targets was asked for."""
    return any(each.name in map(rule_name, targets) for each in workflow.dag.targetrules)


def print_summary(log=""):
    """Print the table of scales, the paths and the boxes of closed gates. log: Snakemake's, after a failure."""
    plan, report_script, changes = Path(ladder.results, "plan.json"), script("report.py"), ladder.changes_since_plan
    if plan.exists():
        print(flush=True)
        shell("python {report_script:q} --summary --plan {plan:q} --warning={changes:q} --log={log:q}")


def print_why_it_stopped(log):
    """Print the boxes of a start that failed, and return them."""
    shown = [*boxes(failed_jobs.jobs, Path(ladder.results), log, ended_by(), of_chain=is_for("production"))]
    for box in shown:
        print(f"\n{box}", flush=True)
    return shown


def tell_end(subject, *more):
    """Tell that a climb is over, with its summary and more texts."""
    plan, report_script = Path(ladder.results, "plan.json"), script("report.py")
    gate_notices.look()
    if notices.wants("end") and plan.exists():
        summary = shell("python {report_script:q} --summary --plan {plan:q}", read=True)
        notices.tell("end", subject, "\n\n".join([summary, *more]))


def judge_partial_results():
    """Judge the gates of stages that were cut short, and write the report, of a start that failed."""
    plan, gate_script, report_script = Path(ladder.results, "plan.json"), script("gate.py"), script("report.py")
    if plan.exists():
        for stage in ladder.stages_cut_short():
            # 1: the gate is closed, as expected.
            shell("python {gate_script:q} --plan {plan:q} --stage {stage} >/dev/null || [ $? -eq 1 ]")
        options = report_options
        shell("python {report_script:q} --plan {plan:q} {options:q} >/dev/null")


# No `configfile:`: Snakemake reads 1:30:00 as 5400 and takes the last of two equal keys.
try:
    if is_module:
        # The module's ``prefix`` or ``replace_prefix``.
        move = workflow.modifier.modify_path
        sources = moved(module_sources(config), lambda directory: os.path.dirname(move(f"{directory}/file")))
        # The ladder's paths contain the prefix now, also those that Snakemake does not see.
        workflow.modifier.path_modifier = PathModifier(None, None, workflow)
    else:
        sources = read_sources(workflow.config_settings.configfiles, workflow.config_settings.config)
    ladder = Ladder.of((OF_NO_SITE if "new_site" in sys.argv[1:] and not is_module else sources).load())
    report_options = ladder.report_options(sources.centre)
    if workflow.is_main_process and not workflow.dryrun:
        check_room(Path(".snakemake"))
        if rule_name("doctor") not in sys.argv:  # which reports it itself
            check_room(Path(ladder.results))
    notices = Notices(ladder.settings.experiment.notify, ladder.results)
    gate_notices = GateNotices(notices, Path(ladder.results, "gates"), ladder.plan.stages)
    patch_execution(workflow, ladder, gate_notices, rule_name, is_module)
except NotWritten as error:
    stop(error.problem)
except UserError as error:
    stop(error)
