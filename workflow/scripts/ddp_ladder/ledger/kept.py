"""What of a link's training counts: up to the state that a later start went on from; what follows is made again. Pure.

A later start shows that state before its first step, and it is compared with the start before. Where it does not, a
save holds what was trained when it began.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ddp_ladder.ledger.entries import MADE_AGAIN, RunShare
from ddp_ladder.ledger.jobs import RunStart
from ddp_ladder.measuring.owners import (
    END,
    LAUNCHER,
    NOT_TOLD_APART,
    STARTUP,
    in_equal_rows,
    owners_of_ranks,
    without_waits,
)
from ddp_ladder.records.raw_files import RankFiles, RawRun
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


ROUNDED_S = 1e-3  # of the ends of steps


@dataclass(frozen=True)
class Later:
    """What the later starts of a chain show; they are read from the last one to the first."""

    first: Mapping[int, TrainingState] = field(default_factory=dict)  # of the next start that made a step
    steps: float = math.inf  # of the optimizer: the fewest at which one of them began

    def before(self, raw: RawRun) -> Later:
        """Return what is known of the starts before this one."""
        if not raw.first_states:
            return self
        begun = _optimizer_steps(raw.first_states)
        goes_on = self.places_in(raw) <= {*GOOD, "beginning"}  # another optimizer counts anew
        own = math.inf if begun is None else begun
        return Later(raw.first_states, min(own, self.steps) if goes_on else own)

    def kept_steps(self, start: RunStart, *, in_order: bool) -> int | None:
        """Return how many steps of a start count; None if nothing tells it. in_order: it ended with all that it had."""
        raw, made = start.raw, start.steps
        places, begun = self.places_in(raw), _optimizer_steps(raw.first_states)
        if made == 0 or places in ({"beginning"}, {"no parameters"}):
            return 0
        if made and places and places <= {*GOOD} and begun is not None and math.isfinite(self.steps):
            if not raw.ends:  # the progress, which is written once a second, knows fewer
                return round(max(0.0, self.steps - begun))
            ended = _optimizer_steps({end.rank: end.last_state for end in raw.ends if end.last_state})
            trained = made if ended is None else ended - begun  # it may leave out steps, or make several in one
            return round(made * min(1.0, max(0.0, (self.steps - begun) / max(1, trained))))
        return made if in_order or places == {"end"} else _saved_steps(raw)

    def places_in(self, raw: RawRun) -> set[Kind]:
        """Return where in this start the ranks of the next one began."""
        last = {end.rank: end.last_state for end in raw.ends if end.last_state is not None}
        return {found.kind for found in resumptions(raw.first_states, last, self.first).values()}


def _optimizer_steps(states: Mapping[int, TrainingState]) -> int | None:
    counts = [state.optimizer_steps for state in states.values()]
    return max((count for count in counts if count is not None), default=None)


def _saved_steps(raw: RawRun) -> int | None:
    """Return the steps before the begin of the last save; None if nothing tells of one."""
    known = [rank for rank in raw.ranks.values() if rank.end.phases and rank.steps.ended_at_s is not None]
    saver = max(known, key=lambda rank: len(_saves_s(rank)), default=None)
    if saver is None or not _saves_s(saver):
        return 0 if known and raw.has_all_ranks else None  # the rank that saves may be the one that left nothing
    steps = saver.steps
    assert steps.ended_at_s is not None
    since_s = max(_saves_s(saver))[0] + ROUNDED_S - (steps.ended_at_s - steps.step_time_s)
    return int(np.floor(np.clip(since_s / steps.step_time_s, 0.0, 1.0) * steps.size).sum())


def _saves_s(rank: RankFiles) -> Sequence[tuple[float, float]]:
    return rank.end.phases.saves_s if rank.end.phases else ()


def share_of(start: RunStart, kept: int | None, wall_s: float, end_s: float) -> RunShare:
    """Return what a start has of its job's time, of which so many steps count; None: nothing tells what counts.

    wall_s: what it took. end_s: unix time of its end.
    """
    raw, steps = start.raw, start.steps or 0
    whole = without_waits(in_equal_rows(raw))[0]
    whole = replace(whole, ranks={k: files for k, files in whole.ranks.items() if files.steps.count})
    if not raw.reads_log and (owners_s := owners_of_ranks(whole, start.record.step, wall_s)):
        cut = replace(whole, ranks={k: _cut(files, kept or 0) for k, files in whole.ranks.items()})
        kept_s = owners_of_ranks(cut, start.record.step, wall_s)
        kept_s[LAUNCHER] = min(kept_s[LAUNCHER], owners_s[LAUNCHER])
        # Ranks without files are taken for the others, which is so in data parallel training but for the last steps.
        trained = sum(int(files.steps.samples.sum()) for files in cut.ranks.values()) / len(cut.ranks)
        samples = trained * raw.spec.world_size
    else:
        owners_s, samples = dict(start.owners_s(wall_s, end_s)), float((kept or 0) * raw.spec.global_batch)
        part = max(0, (kept or 0) - 1) / (steps - 1) if steps > 1 else 0.0
        loop_s = {END: 0.0, NOT_TOLD_APART: part * owners_s.get(NOT_TOLD_APART, 0.0)} if (kept or 0) < steps else {}
        kept_s = owners_s | loop_s
    if kept is None:  # the rest of its time is that of the job's entry for what is not known
        return RunShare(raw.spec.name, {name: s for name, s in kept_s.items() if name in (LAUNCHER, STARTUP)})
    again_s = max(0.0, math.fsum(owners_s.values()) - math.fsum(kept_s.values()))
    return RunShare(raw.spec.name, {**kept_s, MADE_AGAIN: again_s}, samples if kept else 0.0)


def _cut(files: RankFiles, kept: int) -> RankFiles:
    """Return a rank that ended after so many steps, and what it saved behind these; the first step is its start-up.

    The steps of a row are taken for equally long.
    """
    steps, ends_s = files.steps, files.steps.ended_at_s
    if steps.count <= kept or ends_s is None:
        return files
    rows = steps.rows_of(max(1, kept))
    first = steps.first(rows)
    part = 1 - (first.count - max(1, kept)) / int(first.size[-1])
    ended_s = next_s = float(ends_s[rows - 1] - (1 - part) * first.step_time_s[-1])
    if part == 1 and rows < len(ends_s):
        next_s = float(ends_s[rows] - steps.step_time_s[rows])
    saved_s = (end for begin, end in _saves_s(files) if ended_s - ROUNDED_S <= begin <= next_s)
    until_s = max(ended_s, min(max(saved_s, default=ended_s), next_s))
    shorter: dict[str, Any] = {"ended_at_s": np.append(ends_s[: rows - 1], ended_s)}
    for name in ("size", "samples", "padding_samples", "step_time_s", "data_wait_s"):
        column = getattr(first, name)
        shorter[name] = np.append(column[:-1], np.round(column[-1:] * part, 9)).astype(column.dtype)
    return RankFiles(files.end.model_copy(update={"ended_at_s": until_s}), replace(first, **shorter))
