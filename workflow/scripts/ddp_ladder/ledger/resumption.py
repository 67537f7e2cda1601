"""Where a start of the script goes on: its state before the first step, compared with the start before. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ddp_ladder.records.raw_models import TrainingState

ROUNDING = 1e-6  # relative: values that were saved and loaded
CLEARLY = 2.0  # times as near to the end as to the first state
FEWEST_VALUES, ALONG = 64, 0.5
"""A state lies on the way to the end if the cosine of the angle between both ways is so large, of so many values: other
initial values are in no direction."""

Place = Literal["end", "earlier", "beginning", "unknown"]
"""Place of a state in the start before: at its end, between its begin and its end, at its begin; unknown if nothing can
be compared."""
OfParameters = Place | Literal["undecided"]
"""Undecided: they may be of other initial values, or of an earlier state."""
Kind = Literal["end", "earlier", "beginning", "no optimizer", "no parameters", "no rate", "mixed", "unknown"]
"""What a rank goes on from: the end, an earlier state, nothing; the end or an earlier state without the optimizer's,
without the parameters, or without the learning rate; the parameters of one state and the optimizer's steps of another.
"""
GOOD: tuple[Kind, ...] = ("end", "earlier")


@dataclass(frozen=True)
class Resumption:
    """What one rank goes on from."""

    kind: Kind
    before: TrainingState  # the first start before its first step
    after: TrainingState | None  # at its end; None: it left none
    begin: TrainingState  # the second start before its first step

    @property
    def lost_steps(self) -> int | None:
        """Return the optimizer's steps that are made again; None if it does not count them."""
        if self.after is None or self.after.optimizer_steps is None or self.begin.optimizer_steps is None:
            return None
        return self.after.optimizer_steps - self.begin.optimizer_steps


def resumptions(
    before: Mapping[int, TrainingState], after: Mapping[int, TrainingState], begin: Mapping[int, TrainingState]
) -> dict[int, Resumption]:
    """Return what each rank goes on from, as far as its states are there."""
    return {rank: resumption(before[rank], after.get(rank), begin[rank]) for rank in sorted({*before} & {*begin})}


def resumption(before: TrainingState, after: TrainingState | None, begin: TrainingState) -> Resumption:
    """Return what a rank goes on from."""
    parameters, steps = _of_parameters(before, after, begin), _of_steps(before, after, begin)
    return Resumption(_kind(parameters, steps, _of_rates(before, after, begin)), before, after, begin)


def _kind(parameters: OfParameters, steps: Place, rates: Place) -> Kind:
    if parameters == "undecided":
        return "unknown" if steps == "end" else steps
    if parameters == "unknown":
        return steps
    if parameters == "beginning":
        return "no parameters" if steps in GOOD else "beginning"
    if steps == "beginning":
        return "no optimizer"
    if steps in GOOD and steps != parameters:
        return "mixed"
    return "no rate" if parameters == "end" and rates == "beginning" else parameters


def _of_steps(before: TrainingState, after: TrainingState | None, begin: TrainingState) -> Place:
    first, now = before.optimizer_steps, begin.optimizer_steps
    last = after.optimizer_steps if after else None
    if first is None or now is None or first == last:
        return "unknown"
    if now <= first:
        return "beginning"
    if after is None:
        return "earlier"
    return "unknown" if last is None or now > last else "end" if now == last else "earlier"


def _of_rates(before: TrainingState, after: TrainingState | None, begin: TrainingState) -> Place:
    """Return the place of the learning rates, which need not change in a start, nor in every step."""
    if after is None or not len(before.lr) == len(after.lr) == len(begin.lr) or _are_equal(before.lr, after.lr):
        return "unknown"
    if _are_equal(begin.lr, after.lr):
        return "end"
    return "beginning" if math.dist(begin.lr, before.lr) < math.dist(begin.lr, after.lr) else "earlier"


def _of_parameters(before: TrainingState, after: TrainingState | None, begin: TrainingState) -> OfParameters:
    if (before.count, len(before.values)) != (begin.count, len(begin.values)):
        return "unknown"
    if after is None:
        pairs = zip(before.values, begin.values, strict=True)
        known = [(one, other) for one, other in pairs if one is not None and other is not None]
        return "beginning" if known and all(map(_is_equal, *zip(*known, strict=True))) else "unknown"
    if len(after.values) != len(begin.values):
        return "unknown"
    all_three = zip(before.values, after.values, begin.values, strict=True)
    known_points = [(a, b, c) for a, b, c in all_three if a is not None and b is not None and c is not None]
    if not known_points:
        return "unknown"
    first, last, now = zip(*known_points, strict=True)
    return "unknown" if _are_equal(first, last) else _between(first, last, now)


def _between(first: Sequence[float], last: Sequence[float], now: Sequence[float]) -> OfParameters:
    if _are_equal(now, last):
        return "end"
    if _are_equal(now, first):
        return "beginning"
    moved, to_end, to_first = math.dist(first, last), math.dist(now, last), math.dist(now, first)
    if CLEARLY * to_end <= to_first:
        return "earlier"
    if to_end >= moved:
        return "beginning"
    along = (moved**2 + to_first**2 - to_end**2) / (2 * moved * to_first)
    return "earlier" if len(now) >= FEWEST_VALUES and along >= ALONG else "undecided"


def _are_equal(ones: Sequence[float], others: Sequence[float]) -> bool:
    return all(map(_is_equal, ones, others))


def _is_equal(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=ROUNDING)
