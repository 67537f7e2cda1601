"""What stands in for Snakemake's lock: one start at a time on one results directory, over all checkouts and hosts."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ddp_ladder.ladder import Ladder
from ddp_ladder.messages import UserError
from ddp_ladder.snakemake_settings import WITHOUT_TRAINING
from ddp_ladder.start_lock import held, let_go_by_hand
from ddp_ladder.submission import require_every_job_over


def replace_lock(workflow: Any, ladder: Ladder) -> None:
    """From now on ``workflow``, of the main process, holds the ladder's results while it runs jobs or deletes outputs.

    A dry run holds nothing, nor does --nolock. --unlock lets go what nobody holds any more, as far as can be seen.
    """
    execute, delete_output, unlock = workflow.execute, workflow.delete_output, workflow.unlock
    results = Path(ladder.results)

    def execute_held(executor_plugin: Any, **settings: Any) -> Any:
        plugin, targets = executor_plugin.common_settings, workflow.dag_settings.targets
        # What a killed start has left half done is no question to the user: each start computes what is to do.
        workflow.dag_settings.force_incomplete = True
        wanted, workflow.execution_settings.lock = workflow.execution_settings.lock, False
        with ExitStack() as stack:
            if wanted and not plugin.dryrun_exec and not only_reads(ladder, targets):
                stack.enter_context(_holding(results, submits=not plugin.local_exec))
            return execute(executor_plugin=executor_plugin, **settings)

    def delete_output_held(only_temp: bool = False, dryrun: bool = False) -> None:
        with ExitStack() as stack:
            if not dryrun:
                stack.enter_context(_holding(results, submits=False))
            delete_output(only_temp=only_temp, dryrun=dryrun)

    def unlock_both() -> None:
        with _mistakes_told():
            let_go_by_hand(results)
        unlock()

    workflow.execute, workflow.delete_output, workflow.unlock = execute_held, delete_output_held, unlock_both


def only_reads(ladder: Ladder, targets: Collection[str]) -> bool:
    """Whether a start for these targets leaves alone what another one may be at work on."""
    quick = bool(targets) and WITHOUT_TRAINING.issuperset(targets)
    return quick and not ("eject" in targets and ladder.plan_to_write)


@contextmanager
def _holding(results: Path, submits: bool) -> Iterator[None]:
    def check_jobs(killed: bool) -> None:
        if killed or not submits:  # else those are looked at that are about to be submitted again
            require_every_job_over(results)

    with ExitStack() as stack:
        with _mistakes_told():
            stack.enter_context(held(results, Path.cwd(), check_jobs))
        yield


@contextmanager
def _mistakes_told() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
