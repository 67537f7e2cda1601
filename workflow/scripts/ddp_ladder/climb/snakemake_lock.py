"""Replacement of Snakemake's lock: one start at a time on one results directory, over all checkouts and hosts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.climb.start_lock import held, unlock_by_hand
from ddp_ladder.climb.submission import require_every_job_over
from ddp_ladder.common.messages import UserError
from ddp_ladder.settings.sources import WITHOUT_TRAINING


def replace_lock(workflow: Any, ladder: Ladder, rule_name: Callable[[str], str], is_alone: bool) -> None:
    """Make ``workflow``, of the main process, lock the ladder's results while it runs jobs or deletes outputs.

    A dry run locks nothing, nor does --nolock. --unlock refuses while the process that holds the results is alive.

    rule_name: the name of a rule in ``workflow``. is_alone: whether the ladder is all of it; a module leaves
    Snakemake's own lock in place.
    """
    execute, delete_output, unlock = workflow.execute, workflow.delete_output, workflow.unlock
    results = Path(ladder.results)

    def execute_held(executor_plugin: Any, **settings: Any) -> Any:
        plugin, targets = executor_plugin.common_settings, workflow.dag_settings.targets
        wanted = workflow.execution_settings.lock
        if is_alone:
            # No question to the user about incomplete files of a killed start: each start computes what is to do.
            workflow.dag_settings.force_incomplete = True
            workflow.execution_settings.lock = False
        with ExitStack() as stack:
            if wanted and not plugin.dryrun_exec and not only_reads(ladder, targets, rule_name):
                stack.enter_context(_holding(results, submits=not plugin.local_exec))
            return execute(executor_plugin=executor_plugin, **settings)

    def delete_output_held(only_temp: bool = False, dryrun: bool = False) -> None:
        with ExitStack() as stack:
            if not dryrun:
                stack.enter_context(_holding(results, submits=False))
            delete_output(only_temp=only_temp, dryrun=dryrun)

    def unlock_both() -> None:
        with _exit_on_mistakes():
            unlock_by_hand(results)
        unlock()

    workflow.execute, workflow.delete_output, workflow.unlock = execute_held, delete_output_held, unlock_both


def only_reads(ladder: Ladder, targets: Collection[str], rule_name: Callable[[str], str]) -> bool:
    """Return True if a start for these targets changes nothing that another start may be working on."""
    quick = bool(targets) and set(map(rule_name, WITHOUT_TRAINING)).issuperset(targets)
    return quick and not (rule_name("eject") in targets and ladder.plan_to_write)


@contextmanager
def _holding(results: Path, submits: bool) -> Iterator[None]:
    def check_jobs(killed: bool) -> None:
        if killed or not submits:  # if not, submission checks the jobs that it submits again
            require_every_job_over(results)

    with ExitStack() as stack:
        with _exit_on_mistakes():
            stack.enter_context(held(results, Path.cwd(), check_jobs))
        yield


@contextmanager
def _exit_on_mistakes() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
