"""The failure of a run: the first row of one ordered table that explains it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddp_ladder.common.files import RunDirectory
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records import (
    by_signature,
    failed_ranks,
    gpu_access,
    hangs,
    lost_peers,
    script_failures,
    setup_failures,
)
from ddp_ladder.records.case import Case
from ddp_ladder.records.diagnosis import Diagnosis
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.record import Failure
from ddp_ladder.records.step_failures import failed_check, nothing_seen

Row = Callable[[Case], Failure | None]

ROWS: tuple[Row, ...] = (
    script_failures.still_running,  # the ladder ended it on purpose
    # Named causes.
    setup_failures.not_set_up,  # the other nodes wait for this one, and end with errors of their own
    gpu_access.no_gpu,
    script_failures.needs_srun,
    script_failures.port_taken,
    by_signature.root_raised,
    by_signature.root_printed,
    # The scheduler.
    by_signature.ended_by_scheduler,
    hangs.hung,  # the ladder ended it on purpose
    # Ranks that died or left, before the time limit that the others then reached.
    failed_ranks.killed_first,
    lost_peers.left_early,
    script_failures.time_limit,
    # The first failure that is no consequence of another.
    script_failures.saved_state,
    script_failures.own_failure,
    setup_failures.not_written,
    failed_ranks.failed_silently,
    failed_ranks.aborted_or_told_to_end,
    failed_ranks.lost_launcher,
    # Only consequences are known.
    by_signature.symptom,
    failed_ranks.lost,
    setup_failures.launcher_failed,
    # All processes ended well.
    nothing_seen,
    failed_check,
)
"""The first row that returns a failure explains the run. What only reports the loss of another rank is in no row but
those near the end, and torchrun's own "root cause", the first end that it saw, is in none."""


def explain(spec: RunSpec, raw: RawRun, found: Sequence[Diagnosis], directory: RunDirectory) -> Failure:
    """Return why a run failed. found: its sanity checks, of which one did not pass."""
    case = Case(spec, raw, found, directory)
    return next(failure for row in ROWS if (failure := row(case)) is not None)
