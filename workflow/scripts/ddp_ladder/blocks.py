"""Blocks: from per-rank step times to the throughput of the whole group.

Method: Hoefler and Belli (SC'15) and MLPerf. Steps after the warm-up are grouped into blocks; a block's time is the
maximum over ranks, its samples the sum over ranks; medians over blocks are reported with a bootstrap interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.raw_files import Steps
from ddp_ladder.record import Source, Throughput, Timing

MIN_BLOCKS, MAX_BLOCKS = 10, 200
BLOCK_TIME_S = 1.0
RESAMPLES = 2000
SEED = 20_15  # any fixed number: the same raw files must always give the same record


def block_edges(step_time_s: NDArray[np.float64]) -> list[NDArray[np.intp]]:
    """Indices of the steps of each block: at least 10 blocks, of 1 s each where the run is long enough for it."""
    steps = len(step_time_s)
    median = float(np.median(step_time_s))
    length = min(math.ceil(BLOCK_TIME_S / median), steps // MIN_BLOCKS)
    length = max(length, 1, math.ceil(steps / MAX_BLOCKS))
    return np.array_split(np.arange(steps), max(1, steps // length))


def median_interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Median and its 95 % bootstrap interval (low, high)."""
    generator = np.random.default_rng(SEED)
    medians = np.median(generator.choice(values, (RESAMPLES, len(values))), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(np.median(values)), float(low), float(high)


def measure(
    ranks: Sequence[Steps],
    warmup_steps: int,
    exposed_comm_s: Sequence[float],
    startup_s: float | None,
    wall_s: float,
    source: Source = "counted",
) -> tuple[Throughput, Timing]:
    """Throughput and timing of a run.

    ranks: one entry per rank, all with the same number of steps, more than ``warmup_steps``.
    exposed_comm_s: seconds per step, of the ranks that measured it.
    """
    times = np.stack([rank.step_time_s[warmup_steps:] for rank in ranks])  # ranks x steps, s
    waits = np.stack([rank.data_wait_s[warmup_steps:] for rank in ranks])
    samples = np.stack([rank.samples[warmup_steps:] for rank in ranks]).sum(axis=0)
    blocks = block_edges(times.max(axis=0))
    block_time_s = np.array([times[:, block].sum(axis=1).max() for block in blocks])
    rates = np.array([samples[block].sum() for block in blocks]) / block_time_s
    step_times = block_time_s / np.array([len(block) for block in blocks])
    rate, rate_low, rate_high = median_interval(rates)
    step, step_low, step_high = median_interval(step_times)
    rank_medians = np.median(times, axis=1)
    slowest = float(rank_medians.max())
    return (
        Throughput(
            samples_per_s=rate,
            samples_per_s_low=rate_low,
            samples_per_s_high=rate_high,
            samples_per_s_total=float(samples.sum() / block_time_s.sum()),
            blocks_samples_per_s=tuple(rates.tolist()),
            source=source,
        ),
        Timing(
            warmup_steps=warmup_steps,
            measured_steps=times.shape[1],
            step_time_s=step,
            step_time_s_low=step_low,
            step_time_s_high=step_high,
            blocks_step_time_s=tuple(step_times.tolist()),
            rank_step_time_s_min=float(rank_medians.min()),
            rank_step_time_s_max=slowest,
            straggler_fraction=(slowest - float(np.median(rank_medians))) / slowest,
            data_wait_fraction=float(waits.sum() / times.sum()),
            exposed_comm_fraction=float(np.median(exposed_comm_s)) / step if exposed_comm_s else None,
            startup_s=startup_s,
            wall_s=wall_s,
        ),
    )
