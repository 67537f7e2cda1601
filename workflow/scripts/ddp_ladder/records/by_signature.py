"""Failures that a line of the run names, by the signatures of signatures.toml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddp_ladder.common.messages import numbered
from ddp_ladder.node.launch import training_python
from ddp_ladder.records.case import Case
from ddp_ladder.records.quotes import (
    MOST_LINES,
    ending,
    is_line_of,
    raised_at,
    traceback_to,
    where_raised,
    with_place,
)
from ddp_ladder.records.raw_models import RankEnd
from ddp_ladder.records.record import Evidence, Failure
from ddp_ladder.records.signatures import Match, Role

_OF_LIBRARIES = re.compile(r"\bNCCL WARN\b|^\s*what\(\): ")  # the latter: the C++ runtime, of an exception that aborts


def root_raised(case: Case) -> Failure | None:
    """Return the failure whose cause is named by the exception that ended a rank."""
    return failure_of(case, _first(case.said_matches, "root"))


def root_printed(case: Case) -> Failure | None:
    """Return the failure whose cause a log names, in words that no script prints and goes on after.

    These are words of NCCL, torchrun, srun, Slurm and the like, and exceptions that led to the one that ended a rank.
    """
    if not case.ended_badly or case.raw.unwritten or case.outcome == "not written":
        return None
    raised = [raised_at(case.printed, end.rank, end.exception) for end in case.ends if end.exception]
    led = [(at[0], traceback_to(at[0].lines, at[1])) for at in raised if at]
    found = (
        match
        for match in case.printed_matches
        if _is_of_no_script(match) or any(match.words is words and match.index in lines for words, lines in led)
    )
    return failure_of(case, _first(found, "root"))


def root_at_end(case: Case, node: str, rank: int | None = None) -> Failure | None:
    """Return the failure whose cause is named by the end of the output of a process that ended with an exit code.

    rank: its last words must be a traceback, which it caught and printed; None for a launcher.
    """
    for match in case.printed_matches:
        words = match.words
        if match.signature.role != "root" or words.node != node or not (rank is None or words.rank in (rank, None)):
            continue
        last = ending(words.lines)
        if match.index in last and (rank is None or len(last) > 1):
            return failure_of(case, match if rank is None else replace(match, words=replace(words, rank=rank)))
    return None


def _is_of_no_script(match: Match) -> bool:
    of_script = match.words.speaker in ("rank", "agent")
    return not of_script or match.signature.fatal or bool(_OF_LIBRARIES.search(match.line))


def _first(found: Iterable[Match], role: Role) -> Match | None:
    return next((match for match in found if match.signature.role == role), None)


def ended_by_scheduler(case: Case) -> Failure | None:
    """Return the failure of a run that Slurm ended."""
    return failure_of(case, _first(case.printed_matches, "sched")) if case.ended_badly else None


def symptom(case: Case) -> Failure | None:
    """Return the failure that an ambiguous line shows, where nothing names the cause."""
    if not case.ended_badly:
        return None
    return failure_of(case, _first((*case.said_matches, *case.printed_matches), "symptom"))


def symptom_of(case: Case, end: RankEnd) -> Failure | None:
    """Return the failure that an ambiguous exception of a rank shows."""
    own = (match for match in case.said_matches if match.words.rank == end.rank)
    return failure_of(case, _first(own, "symptom"))


def failure_of(case: Case, match: Match | None) -> Failure | None:
    """Return the failure that a matched line names, with that line as evidence."""
    if match is None:
        return None
    words = match.words
    pythons = {training_python(agent.argv) for agent in case.raw.agents.values() if agent.argv}
    known = {
        "stage": case.spec.stage,
        "log": case.directory.log,
        "python": ", ".join(sorted(pythons)) or None,
        "larger": case.spec.scale.doubled,
    }
    ended = next((end for end in case.ends if end.rank == words.rank and end.failed), None)
    return Failure(
        verdict=match.verdict,
        why=match.why(**known),
        next=numbered(_then_again(match.next(**known))),
        rank=words.rank,
        node=words.node,
        at_s=ended.ended_at_s if ended else words.at_s,
        evidence=_evidence(case, match)[:MOST_LINES],
    )


def _then_again(steps: Sequence[str]) -> list[str]:
    """Return the steps, the last of which ends with a new start."""
    if any("start snakemake" in step for step in steps):
        return list(steps)
    return [*steps[:-1], f"{steps[-1]}; then start snakemake again"]


def _evidence(case: Case, match: Match) -> tuple[Evidence, ...]:
    """Return the matched line with its statement, and the exception of a rank's own if that is another one."""
    if match.words in case.said:
        raised = where_raised(case.printed, match.words.rank, match.line)
        return raised or with_place(match.words, match.index)
    shown = with_place(match.words, match.index)
    first = next(iter(case.own), None)
    if first is None or not first.exception or is_line_of(match.line, first.exception):
        return shown
    return shown + (where_raised(case.printed, first.rank, first.exception)[-1:])
