"""The steps of all ranks of a run, paired by their index: where the time of its mean step goes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.records.blocks import block_edges
from ddp_ladder.records.raw_files import RankFiles
from ddp_ladder.records.record import MEDIAN_OF_BLOCKS, Statistic
from ddp_ladder.records.statistic import median
from ddp_ladder.records.warmup import Warmup
from ddp_ladder.usage.critical_rank import LEAST_TIMED_STEPS, Loaders, RankSteps, StepParts, step_parts

DISTURBED = 7.4  # median absolute deviations: five standard deviations of a normal distribution


def parts_of_run(
    ranks: Sequence[RankFiles], nodes: Sequence[int], warmup: Warmup, statistic: Statistic
) -> StepParts | None:
    """Return the parts of a run's mean step; None unless all ranks have measured steps, of the same number.

    nodes: of each rank. statistic: a median of blocks leaves out what disturbed few of them, and so does this.
    """
    if len({len(rank.steps) for rank in ranks}) != 1 or len(ranks[0].steps) <= warmup.steps:
        return None
    times_s, waits_s = (
        np.stack([column[warmup.steps :] for column in columns])
        for columns in ([r.steps.step_time_s for r in ranks], [r.steps.data_wait_s for r in ranks])
    )
    used = _undisturbed(times_s.max(axis=0)) if statistic == MEDIAN_OF_BLOCKS else np.ones(times_s.shape[1], bool)
    timed, compute_s, comm_s, overlap_s = used, None, None, None
    if all(rank.steps.ddp_s is not None for rank in ranks):
        ddp_s = np.stack([rank.steps.ddp_s[warmup.steps :] for rank in ranks if rank.steps.ddp_s is not None])
        on_all = used & ~np.isnan(ddp_s).any(axis=(0, 2))
        if on_all.sum() >= LEAST_TIMED_STEPS:
            timed = on_all
            forward_s, backward_s, comm_s, overlap_s = np.moveaxis(ddp_s[:, timed], 2, 0)
            compute_s = forward_s + backward_s
    return step_parts(
        RankSteps(
            times_s[:, timed],
            waits_s[:, timed],
            compute_s,
            comm_s,
            overlap_s,
            on_gpus=ranks[0].end.device.kind == "cuda",
        ),
        times_s.max(axis=0)[used],
        timed[used],
        nodes,
        _loaders(ranks),
    )


def _undisturbed(slowest_s: NDArray[np.float64]) -> NDArray[np.bool_]:
    blocks = block_edges(slowest_s)
    means_s = np.array([slowest_s[block].mean() for block in blocks])
    usual_s = median(means_s)
    most_s = usual_s + DISTURBED * max(median(np.abs(means_s - usual_s)), 0.01 * usual_s)
    used = np.zeros(len(slowest_s), bool)
    for block, mean_s in zip(blocks, means_s, strict=True):
        used[block] = mean_s <= most_s
    return used


def _loaders(ranks: Sequence[RankFiles]) -> Loaders:
    batches_s = []
    for rank in ranks:
        workers, batch_s = rank.end.loader.num_workers if rank.end.loader else None, rank.end.worker_batch_s
        batches_s.append(batch_s / workers if workers and batch_s is not None else None)
    loads_itself = [rank.end.loader is not None and rank.end.loader.num_workers == 0 for rank in ranks]
    return Loaders(not all(loads_itself), batches_s)
