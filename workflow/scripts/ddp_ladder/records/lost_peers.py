"""Ranks that ended before the others, and ranks that failed only because another one did. Pure."""

from __future__ import annotations

import math

from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records import failed_ranks
from ddp_ladder.records.diagnosis import NAMED
from ddp_ladder.records.equal_parameters import EQUALLY_MANY
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.record import Failure

LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "transport/tcp/pair.",
    "transport/tcp/unbound_buffer.",
    "Gloo connectFullMesh failed",
    "failed to pass monitoredBarrier",
    "Timed out waiting",
    "Application timeout",
    "collective operation timeout",
    "Connection closed by remote peer",
    "communicator was aborted",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
)
"""Parts of exceptions that only report the loss of another rank."""
OWN_FAULT = (
    "Duplicate GPU detected",
    "ncclInvalidUsage",
    "ncclInvalidArgument",
    "ncclUnhandledCudaError",
    "EADDRINUSE",
)
"""Parts of exceptions of the same types that report a fault of this rank."""
LONG_BEFORE_S = 60.0  # before the end of a job; a script is given less time than this to end in order


def left_early(spec: RunSpec, raw: RawRun) -> Failure | None:
    """Return the failure of ranks that ended well while others waited, or that waited for each other; else None."""
    ends = [rank.end for _, rank in sorted(raw.ranks.items())]
    raised = [end for end in ends if end.exception]
    if any(not is_consequence(end.exception or "") for end in raised):
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
        return Failure(
            verdict="a rank left the others",
            why=f"{left}; {', '.join(waiting[:NAMED])} and waited for it",
            next=EQUALLY_MANY,
        )
    if len(raised) > 1 and len(raised) == spec.world_size:
        where = "; ".join(f"rank {end.rank} after {end.steps.count} steps: {end.exception}" for end in raised[:NAMED])
        return Failure(
            verdict="the ranks waited for each other",
            why=where,
            next="look in the log for the line at which each rank stood: one of them made a collective call (barrier, "
            "all_reduce, broadcast) that the others do not make, or left it out",
        )
    return None


def is_consequence(exception: str) -> bool:
    """Return True if a rank's exception only reports the loss of another rank."""
    return any(sign in exception for sign in LOST_PEER) and not any(sign in exception for sign in OWN_FAULT)
