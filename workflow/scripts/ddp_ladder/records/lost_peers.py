"""Ranks that ended before the others, which then lost them or waited for them. Pure."""

from __future__ import annotations

import math

from ddp_ladder.records import failed_ranks
from ddp_ladder.records.case import Case
from ddp_ladder.records.diagnosis import NAMED
from ddp_ladder.records.equal_parameters import EQUALLY_MANY
from ddp_ladder.records.quotes import with_caught
from ddp_ladder.records.record import Failure
from ddp_ladder.records.signatures import classify

LONG_BEFORE_S = 60.0  # before the end of a job; a script is given less time than this to end in order


def left_early(case: Case) -> Failure | None:
    """Return the failure of ranks that ended well while others waited, or that waited for each other; else None."""
    spec, raw, ends = case.spec, case.raw, case.ends
    raised = [end for end in ends if end.exception]
    if any(end.exception for end in case.own):
        return None
    timed_out = raw.ended is not None and raw.ended.outcome == "time limit"
    # A script may save its state and end well at the time limit: then it did not leave the others.
    latest_s = raw.ended.ended_at_s - LONG_BEFORE_S if raw.ended and timed_out else math.inf
    well = [end for end in ends if not end.exception and end.exit_code == 0]
    done = [end for end in well if end.ended_at_s < latest_s]
    # NCCL's watchdog aborts a rank only after its timeout; a rank that aborts sooner has a reason of its own.
    waited_s = min((end.ended_at_s for end in done), default=math.inf) + LONG_BEFORE_S
    aborted = {rank.rank for rank in failed_ranks.aborted(raw) if rank.ended_at_s > waited_s} - raw.ranks.keys()
    missing = [rank for rank in range(spec.world_size) if rank not in raw.ranks and rank not in aborted]
    if missing and not timed_out:
        return None  # a rank without a record was killed, and is the one that the others lost
    waiting = [f"rank {end.rank} was in its step {end.steps.count + 1}" for end in raised]
    waiting += [f"rank {rank} was aborted" for rank in sorted(aborted)]
    waiting += [f"rank {rank} had not ended" for rank in missing]
    if done and waiting:
        left = ", ".join(f"rank {end.rank} ended after {end.steps.count} steps" for end in done[:NAMED])
        failure = Failure(
            verdict="a rank left the others",
            why=f"{left}; {', '.join(waiting[:NAMED])} and waited for it",
            next=EQUALLY_MANY,
            rank=done[0].rank,
            node=done[0].host,
            at_s=done[0].ended_at_s,
        )
        return with_caught(failure, case.printed)
    if len(raised) > 1 and len(raised) == spec.world_size and all(_waited(end.exception or "") for end in raised):
        where = "; ".join(f"rank {end.rank} after {end.steps.count} steps: {end.exception}" for end in raised[:NAMED])
        return Failure(
            verdict="the ranks waited for each other",
            why=where,
            next="look in the log for the line at which each rank stood: one of them made a collective call (barrier, "
            "all_reduce, broadcast) that the others do not make, or left it out",
        )
    return None


def _waited(exception: str) -> bool:
    found = classify(exception)
    return found is not None and found.role == "victim"
