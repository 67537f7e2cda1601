"""What of a link's training counts: up to the state that a later start went on from; what follows is made again. Pure.

A later start shows that state before its first step. Where it does not, a save holds what was trained when it began.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ddp_ladder.ledger.entries import MADE_AGAIN, RunShare
from ddp_ladder.ledger.jobs import RunStart
from ddp_ladder.ledger.resumption import GOOD, Kind, resumptions
from ddp_ladder.measuring.owners import END, LAUNCHER, NOT_TOLD_APART, STARTUP, owners_of_ranks
from ddp_ladder.measuring.pauses import in_equal_rows, without_waits
from ddp_ladder.records.raw_files import RankFiles, RawRun
from ddp_ladder.records.raw_models import TrainingState

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
