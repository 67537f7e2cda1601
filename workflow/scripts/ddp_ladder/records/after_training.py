"""What failed after a training was complete: a remark with its cause. It spoils no figure. Pure.

A run is complete if every rank left its end record, and its script ran through, reached the limit (max_steps,
max_seconds), or raised an exception after all loops that had made steps. A crash at the interpreter's shutdown comes
after that. Who was told to end may have ended early, and well, and a launcher that fails without one of its ranks is
not explained by it: these runs are not complete.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddp_ladder.common.files import RunDirectory
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records import by_signature, failed_ranks, script_failures
from ddp_ladder.records.case import Case
from ddp_ladder.records.diagnosis import Diagnosis
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.record import Remark

TOLD_TO_END_S = 60.0  # before the end of a run that was ended: a script is given less time than this to end in order
ROWS = (
    by_signature.root_raised,
    failed_ranks.killed_first,
    script_failures.own_failure,
    failed_ranks.failed_silently,
    failed_ranks.aborted_or_told_to_end,
    failed_ranks.lost,
)
"""Of the table of causes (explain): those of processes."""


def is_complete(spec: RunSpec, raw: RawRun) -> bool:
    """Return True if nothing that failed in this run came before the end of its training."""
    ends = [rank.end for rank in raw.ranks.values()]
    if len(ends) < spec.world_size or raw.ended is None or any(end.failed and not end.after_training for end in ends):
        return False
    if raw.ended.outcome != "finished":
        return max(end.ended_at_s for end in ends) < raw.ended.ended_at_s - TOLD_TO_END_S
    bad = [end for end in raw.agents.values() if end.exit_code != 0 or end.signal]
    own = [end for end in bad if end.signal not in failed_ranks.TERMINATED]
    return not bad or (bool(own) and all(end.failed_ranks for end in own))


def remarks(spec: RunSpec, raw: RawRun, found: Sequence[Diagnosis], directory: RunDirectory) -> tuple[Remark, ...]:
    """Return what failed after the training, with its cause; nothing if all ended well, or the run is not complete."""
    case = Case(spec, raw, found, directory)
    if not is_complete(spec, raw) or not case.ended_badly:
        return ()
    failure = next((failure for row in ROWS if (failure := row(case))), None)
    cause = f"{failure.verdict}: {failure.why}" if failure else f"the run ended by its {case.outcome}"
    printed = f"; it printed: {failure.evidence[-1].line.strip()}" if failure and failure.evidence else ""
    return (
        Remark(
            name="end",
            what=f"after its training, which is complete and counts, {cause}{printed}",
            next="nothing has to be done for the figures; what a script does at its end (a last checkpoint, a summary) "
            f"may be missing: read {directory.log}",
        ),
    )
