"""The figures of profiled steps in words, and what they say about a cause of lost efficiency. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_ladder.common.formats import milliseconds, percent
from ddp_ladder.gates.changes import Cause
from ddp_ladder.gates.profiled import PARTS, ProfiledRank
from ddp_ladder.gates.scale_point import ScalePoint

SHOWN_OPERATIONS = 2
LISTED_OPERATIONS = 5
_OF_ATTRIBUTION = {
    "compute_s": "compute",
    "exposed_comm_s": "exposed communication",
    "data_wait_s": "data wait",
    "imbalance_s": "imbalance",
    "rest_s": "rest",
}


def step_shown(rank: ProfiledRank) -> str:
    """Return the mean profiled step in milliseconds."""
    return milliseconds(rank.step_s)


def parts_shown(rank: ProfiledRank) -> tuple[tuple[str, str], ...]:
    """Return each part in milliseconds, and its share of the step."""
    values = [getattr(rank, part) for part in PARTS]
    return tuple((milliseconds(value), percent(value / rank.step_s) if rank.step_s else "") for value in values)


def longest_shown(rank: ProfiledRank) -> str:
    """Return the longest operations with their milliseconds in a step."""
    return ", ".join(f"{name} {milliseconds(time_s)}" for name, time_s in rank.longest[:LISTED_OPERATIONS])


def measured_shown(point: ScalePoint) -> str:
    """Return the measured step and its parts in milliseconds: ``50.0: compute 40.0, rest 10.0``."""
    parts = [(name, getattr(point, key)) for key, name in _OF_ATTRIBUTION.items()]
    words = ", ".join(f"{name} {milliseconds(value)}" for name, value in parts if value is not None)
    return f"{milliseconds(point.step_time_s)}: {words}"


def of_profile(cause: Cause, point: ScalePoint, baseline: ScalePoint) -> Iterator[str]:
    """Yield the evidence of the rank that works longest, whose wait for gradients is that for the network alone."""
    rank, there = _rank(point), _rank(baseline)
    if rank is None:
        return
    is_told = point.exposed_comm_s is not None and baseline.exposed_comm_s is not None
    if cause == "communication" or (cause == "computation" and not is_told):
        yield (
            f"profiled steps: communication takes {_ms(rank.communication_total_s)} on {rank.who}, of which "
            f"{_ms(rank.communication_s)} are not hidden"
        )
    if cause == "computation":
        what = "kernels" if rank.on_cuda else "operators"
        beside = f", {_ms(there.kernels_s)} at {baseline.scale}" if there else ""
        own = [(name, time_s) for name, time_s in rank.longest if name not in rank.communicating][:SHOWN_OPERATIONS]
        longest = f" (longest: {', '.join(f'{name} {_ms(time_s)}' for name, time_s in own)})" if own else ""
        yield f"profiled steps: {what} take {_ms(rank.kernels_s)}{beside}{longest}"
    elif cause == "rest":
        others = "copies {}, gaps {}, Python {}"
        here = others.format(_ms(rank.copies_s), _ms(rank.gaps_s), _ms(rank.python_s))
        base = there and others.format(_ms(there.copies_s), _ms(there.gaps_s), _ms(there.python_s))
        yield f"profiled steps: {here}" + (f"; at {baseline.scale}: {base}" if base else "")


def _rank(point: ScalePoint) -> ProfiledRank | None:
    ranks = point.step.profiled if point.step else ()
    return ranks[-1] if ranks else None


def _ms(value_s: float) -> str:
    return f"{milliseconds(value_s)} ms"
