"""A failed run, as the rows of the table in ``explain`` look at it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ddp_ladder.common.files import Agent, RunDirectory, agents_of
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.diagnosis import Diagnosis
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.raw_models import AgentEnd, RankEnd
from ddp_ladder.records.signatures import Match, classify, matches
from ddp_ladder.records.words import Words, lines_of_agent, of_agent, of_srun, read_lines

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
            or any(end.exit_code != 0 or end.signal for end in agents)
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


def is_consequence(exception: str, several_nodes: bool = False) -> bool:
    """Return True if a rank's exception may only report the loss of another rank."""
    found = classify(exception, several_nodes)
    return found is not None and (found.role == "victim" or (found.role == "symptom" and not found.of_its_own))


def _in_order(words: Iterator[Words]) -> tuple[Words, ...]:
    return tuple(sorted(words, key=lambda each: math.inf if each.at_s is None else each.at_s))
