"""Every change to Snakemake and to its process, with its reason.

If another workflow uses this one as a module, that workflow decides on terminal, signals and Snakemake's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from snakemake.executors.local import Executor as LocalExecutor
from snakemake.scheduling.job_scheduler import JobScheduler
from snakemake.settings.enums import Quietness
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from ddp_ladder.climb.interrupts import end_on_signals, pass_on_at_cancel, take_sigterm_in_a_thread
from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.climb.quiet import FailedJobs, SchedulingMessages, filter_terminal, report_full_disks
from ddp_ladder.climb.snakemake_lock import replace_lock
from ddp_ladder.climb.snakemake_module import add_handlers
from ddp_ladder.common.command import print_what_can_be_printed, put_this_python_first

MEASURING = ("measure_stage1", "measure_stage2", "measure_stage3", "preflight_scale")


def patch_process(workflow: Any, is_module: bool) -> FailedJobs:
    """Change this process before the settings are read; return the filter that collects the jobs that fail."""
    failed_jobs = FailedJobs(lambda: _errors_are_shown(workflow))
    print_what_can_be_printed()  # a character that the terminal does not have would end the climb
    put_this_python_first()  # `python` in a rule's shell is the one that has the packages
    if is_module:
        return failed_jobs
    report_full_disks()  # Snakemake shows a traceback per line that its log cannot take
    filter_terminal(SchedulingMessages(lambda: _scheduling_is_shown(workflow)))  # the ladder shows plan and progress
    if workflow.is_main_process:
        filter_terminal(failed_jobs)  # the ladder's box reports them
        end_on_signals()  # Snakemake ignores SIGTERM, and SIGHUP kills it
        pass_on_at_cancel(LocalExecutor)  # Snakemake waits for its jobs without ending them
    else:
        take_sigterm_in_a_thread(JobScheduler)  # Snakemake may wait for itself, and outlive its job
    return failed_jobs


def _scheduling_is_shown(workflow: Any) -> bool:
    """Return True in a dry run if commands are asked for; in any other start if no profile asks for quiet."""
    settings = workflow.output_settings
    if workflow.dryrun:
        return bool(settings.printshellcmds or settings.verbose)
    return Quietness.PROGRESS not in (settings.quiet or ())


def _errors_are_shown(workflow: Any) -> bool:
    """Return True if Snakemake's errors are asked for, or if nothing else would report them."""
    settings, execution = workflow.output_settings, workflow.execution_settings
    asked = settings.printshellcmds or settings.verbose or settings.show_failed_logs
    return bool(asked or (execution is not None and (execution.debug or execution.no_hooks)))


def patch_execution(
    workflow: Any, ladder: Ladder, rule_name: Callable[[str], str], names: Mapping[str, Any], is_module: bool
) -> None:
    """Replace the Slurm executor, Snakemake's lock and, in a module, the calls of the handlers.

    rule_name: the name of a rule in the workflow that uses it. names: the globals that hold the handlers.
    Raises UserError for a Slurm executor of another version.
    """
    if find_spec("snakemake_executor_plugin_slurm"):  # optional for a workflow that uses this one as a module
        from snakemake_executor_plugin_slurm import Executor

        from ddp_ladder.climb.executor import ladder_executor

        slurm = ExecutorPluginRegistry().get_plugin("slurm")
        rules = [rule_name(name) for name in MEASURING]
        slurm.executor = ladder_executor(Executor, Path(ladder.results), ladder.job, rules)
    if not workflow.is_main_process:
        return
    # Snakemake reads a module once for each `use rule`.
    uses = vars(workflow).setdefault("ddp_ladder_uses", {}).setdefault(ladder.results, [])
    uses.append(workflow.modifier.rules)
    if len(uses) == 1:
        replace_lock(workflow, ladder, rule_name, is_alone=not is_module)  # Snakemake's lock names no process
        if is_module:
            add_handlers(workflow, names, uses)  # Snakemake drops a module's handlers
