"""A failed run, as the rows of the table in ``failures`` look at it, and the failures that a line of it names."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ddp_ladder.common.files import Agent, RunDirectory, agents_of
from ddp_ladder.common.messages import numbered
from ddp_ladder.node.launch import training_python
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.correctness import Diagnosis
from ddp_ladder.records.quotes import (
    MOST_LINES,
    ending,
    is_line_of,
    raised_at,
    traceback_to,
    where_raised,
    with_place,
)
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.raw_models import AgentEnd, RankEnd
from ddp_ladder.records.record import Evidence, Failure
from ddp_ladder.records.signatures import (
    Match,
    Role,
    Words,
    is_consequence,
    lines_of_agent,
    matches,
    of_agent,
    of_srun,
    read_lines,
)

AGAIN = "start snakemake again: only failed runs are repeated"
EXCEPTION = "the script raised an exception"


@dataclass(frozen=True)
class Case:
    """A run that failed: its raw files, its sanity checks, and the words of all its speakers."""

    spec: RunSpec
    raw: RawRun
    found: Sequence[Diagnosis]
    directory: RunDirectory

    @property
    def look(self) -> str:
        """Return what to do if nothing is known but the log."""
        return f"read {self.directory.log}, fix the cause, and {AGAIN}"

    @property
    def outcome(self) -> str:
        """Return how the job saw the run end."""
        return self.raw.ended.outcome if self.raw.ended else "unknown"

    @cached_property
    def ends(self) -> list[RankEnd]:
        """Return the end records of the ranks, in their order."""
        return [rank.end for _, rank in sorted(self.raw.ranks.items())]

    @cached_property
    def own(self) -> list[RankEnd]:
        """Return the ranks that failed for a reason of their own, and not because they lost another; first to end."""
        return sorted((end for end in self.ends if self._failed_by_itself(end)), key=lambda end: end.ended_at_s)

    @property
    def victims(self) -> list[RankEnd]:
        """Return the ranks that raised an exception, where none has a reason of its own."""
        return [end for end in self.ends if end.exception]

    def _failed_by_itself(self, end: RankEnd) -> bool:
        if not end.exception:
            return end.exit_code != 0
        return not is_consequence(end.exception, self.several_nodes)

    @property
    def several_nodes(self) -> bool:
        return len({end.host for end in self.raw.agents.values()}) > 1

    @property
    def ended_badly(self) -> bool:
        """Return True if a process failed or was missing; False if only a check of what was measured failed."""
        agents = self.raw.agents.values()
        return (
            self.outcome != "finished"
            or not agents
            or any(end.failed for end in self.ends)
            or any(end.failed for end in agents)
        )

    @cached_property
    def said(self) -> tuple[Words, ...]:
        """Return what ended each rank, by its own record or by the error file of torch; first to end first."""
        return _in_order(self._said())

    def _said(self) -> Iterator[Words]:
        for end in self.ends:
            if end.exception:
                yield Words("rank", end.rank, end.host, (end.exception,), end.ended_at_s)
        for agent in self.raw.agents.values():
            for rank in agent.failed_ranks:
                if rank.error:
                    yield Words("rank", rank.rank, agent.host, tuple(rank.error.split("\n")), rank.ended_at_s)

    @cached_property
    def printed(self) -> tuple[Words, ...]:
        """Return what all processes printed, as their logs have it; the agent that ended first first, then srun."""
        agents = agents_of(self.spec.nodes, self.raw.run.agents_per_node)
        said = _in_order(words for agent in agents for words in self._of_agent(agent))
        return (*said, *of_srun(read_lines(self.directory.launcher_log)), *self._of_nccl())

    @cached_property
    def printed_matches(self) -> tuple[Match, ...]:
        """Return the printed lines that may name the cause."""
        return tuple(matches(self.printed, "root", "sched", "symptom", several_nodes=self.several_nodes))

    @cached_property
    def said_matches(self) -> tuple[Match, ...]:
        """Return the lines that ended a rank and may name the cause."""
        return tuple(matches(self.said, "root", "symptom", several_nodes=self.several_nodes))

    def _of_agent(self, agent: Agent) -> Iterator[Words]:
        end = self.raw.agents.get(agent)
        log = self.directory.agent_log(agent, self.raw.run.agents)
        lines = lines_of_agent(read_lines(log, self.raw.run.agents), str(agent))
        return of_agent(lines, self._only_rank(agent), self.host(agent), end.ended_at_s if end else None)

    def _only_rank(self, agent: Agent) -> int | None:
        if agent.local_rank is None and self.spec.gpus_per_node > 1 and not self.spec.is_plain:
            return None
        return agent.node_rank * self.spec.gpus_per_node + (agent.local_rank or 0)

    def host(self, agent: Agent) -> str:
        """Return the host of an agent: as itself recorded it, else its planned node."""
        end = self.raw.agents.get(agent)
        return end.host if end else self.raw.run.nodes[agent.node_rank]

    def _of_nccl(self) -> Iterator[Words]:
        """Yield NCCL's own logs, of one process each: nccl.<host>.<pid>.log."""
        ranks = {(end.host, str(end.pid)): end.rank for end in self.ends}
        for file in self.directory.nccl_logs():
            host, _, process = file.stem.removeprefix("nccl.").rpartition(".")
            lines = read_lines(file, self.spec.world_size)
            yield Words("NCCL", ranks.get((host, process)), host or None, lines)

    def agent_log(self, end: AgentEnd | RankEnd) -> Path:
        """Return the log of an agent, or of the agent that started a rank."""
        alone = self.raw.run.agents_per_node == 1
        agent = Agent(end.node_rank or 0, None if alone else end.local_rank)
        return self.directory.agent_log(agent, self.raw.run.agents)


def _in_order(words: Iterator[Words]) -> tuple[Words, ...]:
    return tuple(sorted(words, key=lambda each: math.inf if each.at_s is None else each.at_s))


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
