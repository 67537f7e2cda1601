"""Replacement of Snakemake's lock: one start at a time on one results directory, over all checkouts and hosts.

Snakemake's own lock names no process, so it cannot be taken over from a killed start
(tests/workflow/test_ends_and_locks.py).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.climb.submission import require_every_job_over
from ddp_ladder.common.messages import UserError, notify
from ddp_ladder.settings.sources import WITHOUT_TRAINING
from ddp_ladder.slurm.lock import START, Lock, held


def replace_lock(workflow: Any, ladder: Ladder, rule_name: Callable[[str], str], is_alone: bool) -> None:
    """Make ``workflow``, of the main process, lock the ladder's results while it runs jobs.

    A dry run locks nothing, nor does --nolock. rule_name: the name of a rule in ``workflow``. is_alone: whether the
    ladder is all of it; a module leaves Snakemake's own lock in place.
    """
    execute = workflow.execute

    def execute_held(executor_plugin: Any, **settings: Any) -> Any:
        plugin, targets = executor_plugin.common_settings, workflow.dag_settings.targets
        wanted = workflow.execution_settings.lock
        if is_alone:
            # No question to the user about incomplete files of a killed start: each start computes what is to do.
            workflow.dag_settings.force_incomplete = True
            workflow.execution_settings.lock = False
        is_held = wanted and not plugin.dryrun_exec and not only_reads(ladder, targets, rule_name)
        with _holding(Path(ladder.results), submits=not plugin.local_exec) if is_held else nullcontext():
            return execute(executor_plugin=executor_plugin, **settings)

    workflow.execute = execute_held


def only_reads(ladder: Ladder, targets: Collection[str], rule_name: Callable[[str], str]) -> bool:
    """Return True if a start for these targets changes nothing that another start may be working on."""
    quick = bool(targets) and set(map(rule_name, WITHOUT_TRAINING)).issuperset(targets)
    return quick and not (rule_name("eject") in targets and ladder.plan_to_write)


@contextmanager
def _holding(results: Path, submits: bool) -> Iterator[None]:
    """Hold the results; exit with a message while another start does, or while a job of a killed start goes on."""
    with ExitStack() as stack:
        try:
            lock = held(Lock.of_start(results), START, notify, lost=lambda: os.kill(os.getpid(), signal.SIGTERM))
            if killed := stack.enter_context(lock):
                notify(f"the start of {killed.since} ({killed}) was killed; this one goes on from what it has left")
            if killed or not submits:  # if not, submission checks the jobs that it submits again
                require_every_job_over(results)
        except UserError as error:
            print(error, file=sys.stderr)
            sys.exit(1)
        yield
