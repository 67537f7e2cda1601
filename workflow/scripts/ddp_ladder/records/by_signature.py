"""Failures that a line of the run names, by the signatures of signatures.toml."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddp_ladder.common.messages import numbered
from ddp_ladder.node.launch import training_python
from ddp_ladder.records.case import Case
from ddp_ladder.records.quotes import MOST_LINES, is_line_of, where_raised, with_place
from ddp_ladder.records.raw_models import RankEnd
from ddp_ladder.records.record import Evidence, Failure
from ddp_ladder.records.signatures import Match, Role, classify
from ddp_ladder.records.words import TRACEBACK


def root_raised(case: Case) -> Failure | None:
    """Return the failure whose cause is named by the exception that ended a rank."""
    return failure_of(case, _first(case.said_matches, "root"))


def root_printed(case: Case) -> Failure | None:
    """Return the failure whose cause a log names.

    A script may print the same words and go on. If it raised an exception in the end that no signature knows, only
    words of its traceback, of srun and of Slurm count.
    """
    if not case.ended_badly or case.raw.unwritten or case.outcome == "not written":
        return None
    found = [match for match in case.printed_matches if match.signature.role == "root"]
    exception = case.own[0].exception if case.own else None
    if exception and classify(exception) is None:
        found = [match for match in found if _is_of_the_end(match)]
    return failure_of(case, next(iter(found), None))


def _first(found: Iterable[Match], role: Role) -> Match | None:
    return next((match for match in found if match.signature.role == role), None)


def _is_of_the_end(match: Match) -> bool:
    return match.words.speaker in ("slurm", "srun") or any(
        TRACEBACK in line for line in match.words.lines[: match.index]
    )


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
