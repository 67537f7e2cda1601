"""Ranks that died, left the others or failed by themselves. Pure."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from ddp_ladder_instrument.contract import AT_ITS_END

from ddp_ladder.common.formats import in_short, rank_numbers
from ddp_ladder.common.messages import numbered
from ddp_ladder.diagnosis.case import (
    Case,
    Ended,
    caught,
    of_runtime,
    quote,
    root_at_end,
    symptom_of,
    traceback_of,
    watchdog,
    where_raised,
)
from ddp_ladder.diagnosis.correctness import EQUALLY_MANY, NAMED, WRAP
from ddp_ladder.diagnosis.hangs import SAME_CALLS, against_leaving, in_backward, main_stack, of_script
from ddp_ladder.diagnosis.signatures import LONGEST_OF_SEVERAL, Words, classify, cut, is_consequence
from ddp_ladder.records.raw_models import RankEnd
from ddp_ladder.records.record import Evidence, Failure, FailureKind

TERMINATED = {"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"}
ABORTED = "SIGABRT"  # NCCL's watchdog and C++ also end a rank in this way when it has lost another
LONG_BEFORE_S = 60.0  # before the end of a run: a script is given less time than this to end in order


def of_rank(end: RankEnd | Ended) -> dict[str, Any]:
    """Return rank, node and time of a failure."""
    return {"rank": end.rank, "node": end.host, "at_s": end.ended_at_s}


def killed_first(case: Case) -> Failure | None:
    """Return the failure of ranks that a signal killed before any other rank failed by itself."""
    killed = [rank for rank in case.seen_to_fail if rank.signal and rank.signal not in {ABORTED, *TERMINATED}]
    if not killed or case.own_at_s < killed[0].ended_at_s:
        return None
    return _by_signal(case, killed)


def aborted_or_told_to_end(case: Case) -> Failure | None:
    """Return the failure of ranks that aborted, else of ranks that a foreign signal told to end."""
    for signals in ({ABORTED}, TERMINATED):
        if ranks := [rank for rank in case.seen_to_fail if rank.signal in signals]:
            return _by_signal(case, ranks)
    return None


def _by_signal(case: Case, ranks: Sequence[Ended]) -> Failure:
    first = ranks[0]
    said = of_runtime(case, first.host, first.rank) if first.signal == ABORTED else ()
    if first.signal == ABORTED and not said and (timeout := watchdog(case, first.host, first.rank)):
        return timeout
    alike = [rank.place for rank in ranks if rank.signal == first.signal]
    verdict, next_step = signal_advice(first.signal, first.host)
    by_engine = f", or by itself with exit code {first.exit_code}: the container does not tell them apart"
    return Failure(
        kind=kind_of_signal(first.signal),
        verdict=verdict,
        why=f"{in_short(alike, NAMED)}: ended by {first.signal}{by_engine if first.exit_code > 0 else ''}",
        next=next_step,
        evidence=(*said, *where_each_stood(case).get(first.rank, ("", ()))[1]),
        **of_rank(first),
    )


_TOLD = (
    "a rank was told to end",
    "the ladder did not send this signal: find out what ends processes on {host} (the site's limits, another shell, a "
    "timer of the script itself), and start snakemake again",
)
_OF_SIGNALS: Mapping[str | None, tuple[str, ...]] = {
    **dict.fromkeys((*TERMINATED, "SIGALRM"), _TOLD),
    "SIGKILL": (
        "a rank was killed",
        "run `dmesg` or `journalctl -k` on {host}: often it was the out-of-memory killer",
        "raise node.memory_mb in cluster.yaml, or use fewer loader workers or a smaller batch (workload.args)",
    ),
    "SIGBUS": (
        "a rank crashed",
        "run `df /dev/shm` on {host}: often it is full",
        "give the container more of it (software.container.args in cluster.yaml), or use fewer loader workers "
        "(workload.args)",
    ),
    ABORTED: (
        "a rank aborted",
        "read its last lines in train.log: often it is a failed assertion of C++ or CUDA",
    ),
}
_IN_NATIVE_CODE = (  # an extension, a driver, a library of another build
    "a rank crashed",
    "see what the script does at the line at which the rank stood: the end of train.log has its whole stack",
    "look for native libraries of another build (software.modules, software.python in cluster.yaml)",
)


def kind_of_signal(signal: str | None) -> FailureKind | None:
    """Return the kind of a failure by a signal."""
    return "killed" if signal == "SIGKILL" else None


def signal_advice(signal: str | None, host: str) -> tuple[str, str]:
    """Return verdict and next for a signal that ended a process on this host."""
    verdict, *steps = _OF_SIGNALS.get(signal, _IN_NATIVE_CODE)
    return verdict, numbered([step.replace("{host}", host) for step in steps])


def left_early(case: Case) -> Failure | None:
    """Return the failure of ranks that ended well while others waited, or that waited for each other; else None."""
    raw, end_s = case.raw, math.inf
    raised = [end for end in raw.ends if end.exception]
    if any(end.exception for end in case.own):
        return None
    if raw.ended is not None and case.outcome == "time limit":
        # A script may save its state and end well at the time limit: then it did not leave the others.
        end_s = raw.ended.ended_at_s - LONG_BEFORE_S
    done = [end for end in raw.ends if not end.failed and end.ended_at_s < end_s]
    # NCCL's watchdog aborts a rank only after its timeout; a rank that aborts sooner has a reason of its own.
    waited_s = min((end.ended_at_s for end in done), default=math.inf) + LONG_BEFORE_S
    aborted = [rank for rank in case.seen_to_fail if rank.signal == ABORTED and rank.ended_at_s > waited_s]
    gave_up = {rank.rank for rank in aborted} - raw.ranks.keys()
    missing = [rank for rank in range(raw.spec.world_size) if rank not in raw.ranks and rank not in gave_up]
    if missing and case.outcome != "time limit":
        return None  # a rank without a record was killed, and is the one that the others lost
    waiting = [f"rank {end.rank} had made {end.steps.count}" for end in raised]
    waiting += [f"rank {rank} was aborted" for rank in sorted(gave_up)]
    waiting += [f"rank {rank} had not ended" for rank in missing]
    if done and waiting:
        left = in_short([f"rank {end.rank} ended after {end.steps.count} steps" for end in done], NAMED)
        # With one gradient for all, nobody is more than a step ahead.
        is_alone = not done[0].ddp and any(done[0].steps.count > end.steps.count + 1 for end in raised)
        alone = "; its model was not wrapped in DistributedDataParallel" if is_alone else ""
        backward = in_backward(traceback_of(case, raised[0])) if raised else None
        fix = against_leaving({end.steps.count for end in (*done, *raised)}, backward)
        skipped = _skipped(done) if fix == EQUALLY_MANY and not is_alone else ""
        return Failure(
            verdict="a rank left the others",
            why=f"{left}; {in_short(waiting, NAMED)} and waited for it{alone}{skipped}",
            next=f"on every rank, {WRAP}" if is_alone else fix,
            evidence=(*caught(case, done[0].host, done[0].rank), *_where_it_waited(case, raised)),
            **of_rank(done[0]),
        )
    known = [classify(end.exception or "") for end in raised]
    if len(raised) == raw.spec.world_size > 1 and all(signature and signature.role == "victim" for signature in known):
        words = {end.rank: cut(end.exception or "", LONGEST_OF_SEVERAL) for end in raised}
        lines = [f"rank {end.rank} after {end.steps.count} steps: {words[end.rank]}" for end in raised]
        return Failure(
            verdict="the ranks waited for each other",
            why=in_short(lines, NAMED, "; "),
            next=f"look in the log for the line at which each rank stood, and {SAME_CALLS}",
        )
    return None


def _skipped(done: Sequence[RankEnd]) -> str:
    """Return which of these ranks, that ended well, drew a batch without a step; empty if none is known."""
    drew = [(end.rank, end.batches) for end in done if end.batches and end.batches.untrained]
    some = [
        f"rank {rank} made no step with {batches.untrained} of its {batches.drawn} batches" for rank, batches in drew
    ]
    return f"; {in_short(some, NAMED)}" if some else ""


def _where_it_waited(case: Case, waiting: Sequence[RankEnd]) -> tuple[Evidence, ...]:
    """Return the line at which the first of these ranks waited, without the exception that ended it there."""
    return where_raised(case, waiting[0].rank, str(waiting[0].exception))[:-1] if waiting else ()


def _at_its_end(words: Words) -> tuple[Evidence, ...]:
    """Return the line of the script at which a rank stood when a signal ended it; empty if it is not known."""
    text = "\n".join(words.lines)
    stack = main_stack(text) if AT_ITS_END in text else []
    return quote(words, [of_script(stack)[0].text]) if stack else ()


def saved_state(case: Case) -> Failure | None:
    """Return the failure of a run that saved its state: exit code 75 of ranks, which launchers replace by their own."""
    if not case.raw.spec.instrument:
        failed = (rank for agent in case.raw.agents.values() for rank in agent.failed_ranks)
        ranks, after = [rank.rank for rank in failed if rank.exit_code == os.EX_TEMPFAIL], ""
    else:
        saved = [end for end in case.raw.ends if end.exit_code == os.EX_TEMPFAIL]
        ranks, after = [end.rank for end in saved], f" after {max((end.steps.count for end in saved), default=0)} steps"
    if not ranks or any(end.exception and not is_consequence(end.exception) for end in case.raw.ends):
        return None
    return Failure(
        kind="saved state",
        verdict="stopped by a signal, saved its state",
        why=f"{rank_numbers(ranks)}: exit code {os.EX_TEMPFAIL}{after}, which says: saved, try again",
        next="start snakemake again: the run is repeated, and goes on where it was if workload.args say so",
    )


def own_failure(case: Case) -> Failure | None:
    """Return the first exception, verbatim, or exit code of a rank that failed by itself."""
    if not case.own:
        return None
    end = case.own[0]
    if not end.exception:
        return _exit_code(case, end, f"rank {end.rank}: exit code {end.exit_code}")
    return symptom_of(case, end) or Failure(
        verdict="the script raised an exception",
        why=f"rank {end.rank}: {end.exception}",
        next=case.look,
        evidence=where_raised(case, end.rank, end.exception),
        **of_rank(end),
    )


def where_each_stood(case: Case) -> dict[int, tuple[str | None, tuple[Evidence, ...]]]:
    """Return the host of each rank, and the line at which it lost the others or a signal ended it, where it is known.

    The signal may be that of a launcher, which ends the ranks that are left.
    """
    ended = ((words.rank, words.node, _at_its_end(words)) for words in case.printed if words.rank is not None)
    raised = ((end.rank, end.host, _where_it_waited(case, [end])) for end in case.raw.ends if end.exception)
    return {rank: (host, lines) for rank, host, lines in sorted((*ended, *raised), key=itemgetter(0)) if lines}


def failed_silently(case: Case) -> Failure | None:
    """Return the failure of a rank whose exit code its own end record does not have: it is missing, or older."""
    ranks = case.raw.ranks
    quiet = (end for end in case.seen_to_fail if not (end.rank in ranks and ranks[end.rank].end.failed))
    end = next((end for end in quiet if not end.signal), None)
    if end is None:
        return None
    when = "after the script's end" if end.rank in ranks else "without an end record"
    return _exit_code(case, end, f"{end.place}: exit code {end.exit_code}, {when}")


def _exit_code(case: Case, end: RankEnd | Ended, why: str) -> Failure:
    """Return the failure of a rank that ended with an exit code, with its last line."""
    return root_at_end(case, end.host, end.rank) or Failure(
        verdict="the script failed",
        why=why + last_words(case, end.host, end.rank),
        next=case.look,
        evidence=caught(case, end.host, end.rank),
        **of_rank(end),
    )


def last_words(case: Case, host: str, rank: int | None = None) -> str:
    """Return the last line that was printed on a host, for the end of a sentence; empty if there is none."""
    line = case.last_line(host, rank)
    return f"; the last line that was printed: {line}" if line else ""
