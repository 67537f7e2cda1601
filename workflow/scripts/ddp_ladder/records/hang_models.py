"""Models of what ranks show of their progress, and of an agent's report that they make none. Times as in raw_models."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from ddp_ladder.common.files import Agent, RunDirectory, read_json
from ddp_ladder.common.model import Model, Several
from ddp_ladder.plan.hang import HangBounds
from ddp_ladder.records.raw_models import Count, Duration, Name, Positive, RawFile

Phase = Literal["starting", "training", "evaluating", "between passes", "unknown", "ended"]
ProcessState = Literal["alive", "stopped", "uninterruptible", "gone", "unknown"]


class Heartbeat(Model):
    """The first line of ranks/rank<k>.heartbeat, which the instrument rewrites once a second."""

    pid: Positive
    thread: int | None = Field(description="Identity of the main thread, as in the stacks.")
    signal: Positive | None = Field(
        description="The signal that makes the rank append its main thread's stack to this file."
    )
    phase: Phase
    steps: Count
    step_s: Duration | None = Field(description="Median of the last steps.")
    moved_monotonic_s: float = Field(
        description="When a step, a backward pass or a batch was last seen: CLOCK_MONOTONIC."
    )
    moved_at_s: float
    sequence: int | None = Field(
        description="Collective calls begun in the default group; null while the rank goes on."
    )


class RankStall(Model):
    """One rank that makes no step."""

    rank: Count
    stuck: bool = Field(description="False: it has ended, or nothing is known of it; the others are judged.")
    process: ProcessState = Field(description="gone: it is no process of its agent. unknown: it left no sign.")
    pid: Positive | None
    thread: int | None
    phase: Phase | None = Field(description="Null: it left no sign.")
    steps: Count
    step_s: Duration | None
    silent_s: Duration
    bound_s: Duration | None = Field(description="The time without progress that was allowed; null: any.")
    sequence: int | None
    stack: str | None = Field(description="Null: none could be had.")


class AgentStall(RawFile):
    """Report of an agent whose ranks make no step (nodes/hang-node<k>.json); deleted if they go on."""

    node_rank: Count
    local_rank: Count | None
    node: Name
    host: Name
    found_at_s: float
    bounds: HangBounds
    ranks: Several[RankStall]


def read_stalls(directory: RunDirectory, agents: Iterable[Agent]) -> dict[Agent, AgentStall]:
    """Return the reports of these agents, as far as there are any that can be read."""
    stalls = {}
    for agent in agents:
        with contextlib.suppress(OSError, ValueError):
            stalls[agent] = AgentStall.from_json(read_json(directory.hang(agent)))
    return stalls


def is_stuck(reports: Iterable[AgentStall]) -> bool:
    """Return True if a rank in these reports is stuck."""
    return any(rank.stuck for report in reports for rank in report.ranks)
