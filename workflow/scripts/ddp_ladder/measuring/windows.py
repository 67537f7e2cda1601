"""Windows of a run, from the sums that its ranks have at the begin and at the end of each. Pure.

Each figure is a ratio of differences of one rank's sums, so ranks need not be read at the same moment. What varies from
step to step within a window is in its means: parts of windows are compared with those of other windows only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from ddp_ladder_instrument.contract import TOTALS
from numpy.typing import NDArray

from ddp_ladder.nodes.critical_rank import LoaderSpeeds, RankSteps, StepParts, step_parts
from ddp_ladder.records.raw_models import RankTotals
from ddp_ladder.records.steps import Steps

MOST_WINDOWS = 10  # of a finished run
Sums = NDArray[np.float64]
"""Ranks x contract.TOTALS, or the growth of these in a window; nan where a figure is not known."""

_AT = {name: place for place, name in enumerate(TOTALS)}


def sums_of(totals: Iterable[RankTotals], ranks: int) -> Sums:
    """Return the sums of all ranks; nan for those that are not there."""
    sums = np.full((ranks, len(TOTALS)), np.nan)
    for each in totals:
        if each.rank < ranks and len(each.totals) == len(TOTALS):
            sums[each.rank] = [np.nan if figure is None else figure for figure in each.totals]
    return sums


def known_so_far(before: Sums, now: Sums) -> Sums:
    """Return the sums of now, and those of before of the ranks that are not known now."""
    return np.where(np.isnan(now[:, _AT["steps"], None]), before, now)


@dataclass(frozen=True)
class Window:
    """A stretch of a run: means of its steps."""

    began_at_s: float  # unix time of the end of the step before it
    ended_at_s: float
    steps: int
    samples_per_s: float | None  # of all ranks, in the time of the slowest rank's steps; None: a rank is not known
    step_time_s: float  # of the slowest rank
    data_wait_s: float  # of a step, in the mean of the ranks
    exposed_comm_s: float | None  # of a step, on the rank that waits least for others; None: not known


def window_of(before: Sums, now: Sums) -> Window | None:
    """Return the window between two sums; None if no step was made in it."""
    grown = now - before
    steps = grown[:, _AT["steps"]]
    made = steps > 0  # False for nan
    if not made.any():
        return None
    samples, mean = grown[made, _AT["samples"]] / steps[made], _mean_steps(grown[made])
    exposed_s = None if mean.collectives_s is None else mean.exposed_s
    slowest_s = float(mean.step_s.max())
    return Window(
        began_at_s=float(before[made, 0].min()),
        ended_at_s=float(now[made, 0].max()),
        steps=int(steps[made].max()),
        samples_per_s=float(samples.sum()) / slowest_s if made.all() and slowest_s > 0 and samples.any() else None,
        step_time_s=slowest_s,
        data_wait_s=float(mean.data_wait_s.mean()),
        exposed_comm_s=None if exposed_s is None else float(exposed_s.min()),
    )


def _mean_steps(grown: Sums, on_gpus: bool = False) -> RankSteps:
    """Return the mean steps behind the growth of the ranks' sums: in one window, or in each of several."""
    of = {name: grown[..., place] for place, name in enumerate(TOTALS)}
    steps, timed = of["steps"], of["timed_steps"]
    others_s = of["collectives_s"] / steps
    is_timed = bool((timed > 0).all())
    return RankSteps(
        step_s=of["step_time_s"] / steps,
        data_wait_s=of["data_wait_s"] / steps,
        compute_s=of["forward_s"] / timed + of["backward_s"] / timed if is_timed else None,
        comm_s=of["comm_s"] / timed if is_timed else None,
        overlap_s=of["overlap_s"] / timed if is_timed else None,
        on_gpus=on_gpus,
        # What DDP exchanges is not known where it timed no step.
        collectives_s=None if not is_timed or np.isnan(others_s).any() else others_s,
    )


def windows_of_steps(ranks: Sequence[Steps], warmup_steps: int) -> list[Sums]:
    """Return the growth of the ranks' sums in windows of equally many rows of a run that has ended."""
    measured = [rank.after(warmup_steps) for rank in ranks]
    rows = min((len(rank.size) for rank in measured), default=0)
    edges = np.linspace(0, rows, min(MOST_WINDOWS, rows) + 1).astype(int)
    return [np.stack([_grown(rank, int(a), int(b)) for rank in measured]) for a, b in pairwise(edges)]


def _grown(rank: Steps, first: int, after: int) -> NDArray[np.float64]:
    rows = slice(first, after)
    columns = (rank.size, rank.samples, rank.step_time_s, rank.data_wait_s)
    collectives_s = np.nan if rank.collectives_s is None else rank.collectives_s[rows].sum()
    ddp = rank.ddp and rank.ddp.between(first, after)
    of_ddp = np.concatenate([[len(ddp.rows)], ddp.times_s.sum(axis=0)]) if ddp else np.zeros(5)
    return np.array([np.nan, *(column[rows].sum() for column in columns), collectives_s, *of_ddp])


def parts_of(windows: Sequence[Sums], nodes: Sequence[int], on_gpus: bool) -> StepParts | None:
    """Return the parts of the mean step of these windows, which are growths of sums; None if a rank is not known.

    nodes: of each rank.
    """
    grown = np.stack(windows, axis=1) if windows else np.empty((0, 0, len(TOTALS)))  # ranks x windows
    steps = grown[..., _AT["steps"]]
    if not steps.size or not (steps > 0).all():
        return None
    timed = _mean_steps(grown, on_gpus)
    every = np.ones(len(windows), bool)
    return step_parts(timed, timed.step_s.max(axis=0), every, nodes, LoaderSpeeds(False, [None] * len(grown)))
