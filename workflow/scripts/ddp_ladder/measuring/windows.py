"""Windows of a run, from the sums that its ranks have at the begin and at the end of each. Pure.

Each figure is a ratio of differences of one rank's sums, so ranks need not be read at the same moment. What varies from
step to step within a window is in its means.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from ddp_ladder_instrument.contract import TOTALS
from numpy.typing import NDArray

from ddp_ladder.records.raw_models import RankTotals

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
    waits_least: int | None = None  # that rank


def window_of(before: Sums, now: Sums) -> Window | None:
    """Return the window between two sums; None if no step was made in it."""
    grown = now - before
    made = grown[:, _AT["steps"]] > 0  # False for nan
    if not made.any():
        return None
    of = {name: grown[made, place] for place, name in enumerate(TOTALS)}
    steps, timed = of["steps"], of["timed_steps"]
    slowest_s = float((of["step_time_s"] / steps).max())
    samples_per_s = (of["samples"] / steps).sum() / slowest_s if made.all() and slowest_s > 0 else None
    with np.errstate(invalid="ignore"):  # what DDP exchanges is not known where it timed no step: 0 / 0
        exposed_s = np.maximum((of["comm_s"] - of["overlap_s"]) / timed, 0.0) + of["collectives_s"] / steps
    is_known = not np.isnan(exposed_s).any()
    return Window(
        began_at_s=float(before[made, 0].min()),
        ended_at_s=float(now[made, 0].max()),
        steps=int(steps.max()),
        samples_per_s=float(samples_per_s) if samples_per_s else None,
        step_time_s=slowest_s,
        data_wait_s=float((of["data_wait_s"] / steps).mean()),
        exposed_comm_s=float(exposed_s.min()) if is_known else None,
        waits_least=int(np.flatnonzero(made)[exposed_s.argmin()]) if is_known else None,
    )
