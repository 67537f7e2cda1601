"""Windows of a run, from the sums that its ranks have at the begin and at the end of each. Pure.

Each figure is a ratio of differences of one rank's sums, so ranks need not be read at the same moment. What varies from
step to step within a window is in its means: parts of windows are compared with those of other windows only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

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
    per_step = grown[made] / steps[made, None]
    step_s, samples = per_step[:, _AT["step_time_s"]], per_step[:, _AT["samples"]]
    exposed_s = _exposed_s(grown[made])
    slowest_s = float(step_s.max())
    return Window(
        began_at_s=float(before[made, 0].min()),
        ended_at_s=float(now[made, 0].max()),
        steps=int(steps[made].max()),
        samples_per_s=float(samples.sum()) / slowest_s if made.all() and slowest_s > 0 and samples.any() else None,
        step_time_s=slowest_s,
        data_wait_s=float(per_step[:, _AT["data_wait_s"]].mean()),
        exposed_comm_s=None if exposed_s is None else float(exposed_s.min()),
    )


def _of_timed(grown: Sums, *names: str) -> list[NDArray[np.float64]] | None:
    """Return sums of DDP's times by step that it timed; None if a rank has none."""
    timed = grown[..., _AT["timed_steps"]]
    return [grown[..., _AT[name]] / timed for name in names] if (timed > 0).all() else None


def _exposed_s(grown: Sums) -> NDArray[np.float64] | None:
    """Return the communication of a step that nothing hides, of each rank; None if it is not known."""
    of_ddp, steps = _of_timed(grown, "comm_s", "overlap_s"), grown[..., _AT["steps"]]
    others_s = grown[..., _AT["collectives_s"]] / steps
    if of_ddp is None or np.isnan(others_s).any():
        return None
    exposed_s: NDArray[np.float64] = np.maximum(of_ddp[0] - of_ddp[1], 0.0) + others_s
    return exposed_s


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
    of_ddp = _of_timed(grown, "forward_s", "backward_s", "comm_s", "overlap_s")
    forward_s, backward_s, comm_s, overlap_s = of_ddp or (None, None, None, None)
    others_s = grown[..., _AT["collectives_s"]] / steps
    step_s = grown[..., _AT["step_time_s"]] / steps
    timed = RankSteps(
        step_s=step_s,
        data_wait_s=grown[..., _AT["data_wait_s"]] / steps,
        compute_s=None if of_ddp is None else cast(Sums, forward_s) + cast(Sums, backward_s),
        comm_s=comm_s,
        overlap_s=overlap_s,
        on_gpus=on_gpus,
        # What DDP exchanges is not known where it timed no step.
        collectives_s=None if of_ddp is None or np.isnan(others_s).any() else others_s,
    )
    every = np.ones(step_s.shape[1], bool)
    return step_parts(timed, step_s.max(axis=0), every, nodes, LoaderSpeeds(False, [None] * len(step_s)))
