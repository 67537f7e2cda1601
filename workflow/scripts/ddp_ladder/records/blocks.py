"""Blocks: from per-rank step times to the throughput of the whole group.

Method: Hoefler and Belli (SC'15) and MLPerf. Steps after the warm-up are grouped into blocks; a block's time is the
maximum over ranks, its samples the sum over ranks. ``statistic`` computes the figures from them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.records.raw_files import Steps
from ddp_ladder.records.raw_models import Source
from ddp_ladder.records.record import MEDIAN_OF_BLOCKS, Throughput, Timing
from ddp_ladder.records.statistic import PerBlock, median, statistic_of
from ddp_ladder.records.warmup import Warmup

MIN_BLOCKS, MAX_BLOCKS = 10, 200
BLOCK_TIME_S = 1.0


def block_edges(step_time_s: NDArray[np.float64]) -> list[NDArray[np.intp]]:
    """Return the step indices of each block: at least 10 blocks, of 1 s each if the run is long enough."""
    steps = len(step_time_s)
    length = min(math.ceil(BLOCK_TIME_S / median(step_time_s)), steps // MIN_BLOCKS)
    length = max(length, 1, math.ceil(steps / MAX_BLOCKS))
    return np.array_split(np.arange(steps), max(1, steps // length))


def measure(
    ranks: Sequence[Steps],
    warmup: Warmup,
    exposed_comm_s: Sequence[float],
    startup_s: float | None,
    wall_s: float,
    training_s: float | None = None,
    source: Source = "counted",
) -> tuple[Throughput, Timing]:
    """Return throughput and timing of a run.

    ranks: one entry per rank, all with the same number of steps, more than the warm-up's.
    exposed_comm_s: seconds per step, of the ranks that measured it.
    training_s: from the end of the first step to the end of the script; None if a rank did not report it.
    """
    times = np.stack([rank.step_time_s[warmup.steps :] for rank in ranks])  # ranks x steps, s
    waits = np.stack([rank.data_wait_s[warmup.steps :] for rank in ranks])
    samples = np.stack([rank.samples[warmup.steps :] for rank in ranks]).sum(axis=0)
    slowest_s = times.max(axis=0)
    blocks = block_edges(slowest_s)
    block_time_s = np.array([times[:, block].sum(axis=1) for block in blocks]).max(axis=1)
    steps = np.array([len(block) for block in blocks])
    rates = PerBlock(np.add.reduceat(samples, [block[0] for block in blocks]), block_time_s)
    step_times = PerBlock(block_time_s, steps)
    statistic = statistic_of([rates])
    rate, rate_low, rate_high = rates.with_interval(statistic)
    step, step_low, step_high = step_times.with_interval(statistic)
    median_step = float(step_times.of(MEDIAN_OF_BLOCKS))
    rank_medians = [median(of_rank) for of_rank in times]
    slowest = max(rank_medians)
    p5_s, p95_s = np.quantile(slowest_s, [0.05, 0.95])
    return (
        Throughput(
            samples_per_s=rate,
            samples_per_s_low=rate_low,
            samples_per_s_high=rate_high,
            samples_per_s_total=float(samples.sum() / block_time_s.sum()),
            samples_per_s_end_to_end=_end_to_end(ranks, training_s),
            blocks_samples_per_s=tuple(rates.values.tolist()),
            source=source,
            statistic=statistic,
        ),
        Timing(
            warmup_steps=warmup.steps,
            warmup_stable=warmup.stable,
            warmup_slower=warmup.slower,
            measured_steps=times.shape[1],
            step_time_s=step,
            step_time_s_low=step_low,
            step_time_s_high=step_high,
            step_time_s_p5=float(p5_s),
            step_time_s_p95=float(p95_s),
            blocks_step_time_s=tuple(step_times.values.tolist()),
            blocks_steps=tuple(steps.tolist()),
            block_variation=variation(step_times.values),
            drift_fraction=drift(step_times.values),
            rank_step_time_s_min=min(rank_medians),
            rank_step_time_s_max=slowest,
            straggler_fraction=(slowest - median(rank_medians)) / slowest,
            data_wait_fraction=data_wait_fraction(waits, times),
            exposed_comm_fraction=median(exposed_comm_s) / median_step if exposed_comm_s else None,
            startup_s=startup_s,
            wall_s=wall_s,
        ),
    )


def variation(step_times_s: NDArray[np.float64]) -> float:
    """Return standard deviation / mean of the blocks' step times."""
    return float(step_times_s.std() / step_times_s.mean())


def data_wait_fraction(wait_s: NDArray[np.float64], step_time_s: NDArray[np.float64]) -> float | None:
    """Return the fraction of the step time spent waiting for data; None if a wait is unknown or there are no steps."""
    fraction = float(wait_s.sum() / step_time_s.sum()) if step_time_s.size else math.nan
    return None if math.isnan(fraction) else fraction


def drift(step_times_s: NDArray[np.float64]) -> float | None:
    """Return the fraction by which the last third of the blocks is slower than the first (medians); None below 3."""
    third = len(step_times_s) // 3
    if not third:
        return None
    return median(step_times_s[-third:]) / median(step_times_s[:third]) - 1


def _end_to_end(ranks: Sequence[Steps], training_s: float | None) -> float | None:
    """Return samples per second after the first step, with validation, checkpoints and clean-up included."""
    samples = sum(int(rank.samples[1:].sum()) for rank in ranks)
    return samples / training_s if training_s else None
