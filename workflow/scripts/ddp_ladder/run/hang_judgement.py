"""The judgement of the hang watch: does a rank move, is it busy outside the training loop, or is it stuck? Pure.

``short`` is the larger of hang.at_least_s and hang.times_median_step times the median step, ``long`` is
hang.first_step_s:

| the rank | is stuck after |
| --- | --- |
| is stopped | at_least_s |
| trains | short, unless its stack shows that it saves, validates or compiles: then long |
| evaluates, or is between two passes over its loader | long; short if its stack shows that it waits for other ranks |
| has made no step, or trains without a DataLoader | long |
| has ended its script, but not its process | long |

A rank that nothing is known of is not judged: it neither hangs nor holds the judgement on the others up. One rank that
moves or is busy, on any node, means that there is no hang: the others wait for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from ddp_ladder.plan.hang import HangBounds
from ddp_ladder.records.hang_models import Heartbeat, ProcessState
from ddp_ladder.records.stacks import in_collective, is_at_work, main_stack


class State(Enum):
    """What the watch makes of a rank."""

    GOES_ON = "it moves, or is busy and may be for longer"
    NOT_JUDGED = "it has ended, or nothing is known of it"
    STUCK = "it makes no step"


@dataclass(frozen=True)
class Seen:
    """What is known of one rank.

    heartbeat: None before its first. silent_s: since it moved, or was launched. process: None if not looked at.
    stack: None if not looked at, or none came. reports_itself: its steps may be in its log alone.
    """

    rank: int
    heartbeat: Heartbeat | None
    silent_s: float
    process: ProcessState | None = None
    stack: str | None = None
    reports_itself: bool = False
    pid: int | None = None

    def with_process(self, process: ProcessState, pid: int | None, stack: str | None) -> Seen:
        """Return this with what was seen of the rank's process."""
        return replace(self, process=process, pid=pid, stack=stack)


def short_s(bounds: HangBounds, heartbeat: Heartbeat | None) -> float:
    """Return the bound in the training loop; infinite before there is a median step, or if it is switched off."""
    if bounds.times_median_step is None or heartbeat is None or heartbeat.step_s is None:
        return math.inf
    return max(bounds.at_least_s, bounds.times_median_step * heartbeat.step_s)


def long_s(bounds: HangBounds, heartbeat: Heartbeat | None) -> float:
    """Return the bound outside the training loop, never below the other; infinite if it is switched off."""
    if bounds.first_step_s is None:
        return math.inf
    short = short_s(bounds, heartbeat)
    return max(bounds.first_step_s, short) if math.isfinite(short) else bounds.first_step_s


def is_suspect(seen: Seen, bounds: HangBounds) -> bool:
    """Return True if the rank has been silent for long enough to look at its process and its stack."""
    short = short_s(bounds, seen.heartbeat)
    first_s = short if math.isfinite(short) else bounds.at_least_s
    return seen.silent_s >= min(first_s, long_s(bounds, seen.heartbeat))


def bound_s(seen: Seen, bounds: HangBounds) -> float:
    """Return how long this rank may be silent."""
    heartbeat = seen.heartbeat
    if seen.process == "stopped":
        return bounds.at_least_s
    short, long = short_s(bounds, heartbeat), long_s(bounds, heartbeat)
    if heartbeat is None or heartbeat.phase not in ("training", "evaluating", "between passes"):
        return long
    if heartbeat.step_s is None:
        return long  # the second step may compile as the first did
    stack = main_stack(seen.stack, heartbeat.thread) if seen.stack is not None else []
    if in_collective(stack):
        return short
    if heartbeat.phase != "training":
        return long
    # Without a stack it is not known whether it saves. One that is not even interrupted by a signal gives none.
    trains = (stack and not is_at_work(stack)) or (not stack and seen.process == "uninterruptible")
    return short if trains else max(short, long)


def judge(seen: Seen, bounds: HangBounds) -> State:
    """Return what a rank is, from what was seen of it."""
    if not is_suspect(seen, bounds):
        return State.GOES_ON
    if seen.process == "gone":
        return State.NOT_JUDGED
    phase = seen.heartbeat.phase if seen.heartbeat is not None else "starting"
    if seen.silent_s < bound_s(seen, bounds):
        return State.NOT_JUDGED if phase == "ended" else State.GOES_ON
    if seen.reports_itself and phase == "starting" and seen.process != "stopped":
        return State.NOT_JUDGED  # it may print its first figure later
    return State.STUCK
