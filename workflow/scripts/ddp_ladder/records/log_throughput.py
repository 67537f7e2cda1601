"""Throughput read from a program's log: weak evidence, for programs that cannot be instrumented or changed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ddp_ladder.records.blocks import drift, variation
from ddp_ladder.records.record import Throughput, Timing
from ddp_ladder.records.statistic import PerBlock, statistic_of


def printed_rates(log: Path, pattern: str) -> tuple[float, ...]:
    """Return the samples per second in a log, in order; what is not a number above 0 is left out.

    Empty if there is no log.
    """
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(_rates(text, re.compile(pattern)))


def _rates(text: str, pattern: re.Pattern[str]) -> Iterator[float]:
    # A progress bar rewrites its line; each state of it becomes a separate line here.
    for line in re.split(r"[\r\n]+", text):
        for match in pattern.finditer(line):
            try:
                rate = float(match[1] or "")
            except ValueError:
                continue
            if math.isfinite(rate) and rate > 0:
                yield rate


def measured_rates(rates: tuple[float, ...], warmup_steps: int) -> tuple[float, ...]:
    """Return the rates after the warm-up: drop the first ``warmup_steps``, but at most half of them."""
    return rates[min(warmup_steps, len(rates) // 2) :]


def figures(
    rates: tuple[float, ...], warmup_steps: int, global_batch: int, startup_s: float | None, wall_s: float
) -> tuple[Throughput, Timing]:
    """Return throughput and timing from at least one printed rate; a step is assumed to use the planned global batch.

    Each printed rate is a block, and all blocks have equally many steps.
    """
    measured = np.array(measured_rates(rates, warmup_steps))
    steps_s = global_batch / measured
    per_block = PerBlock(np.full(len(measured), float(global_batch)), steps_s)
    statistic = statistic_of([per_block])
    rate, low, high = per_block.with_interval(statistic)
    throughput = Throughput(
        samples_per_s=rate,
        samples_per_s_low=low,
        samples_per_s_high=high,
        samples_per_s_total=float(global_batch / steps_s.mean()),
        samples_per_s_end_to_end=None,
        blocks_samples_per_s=tuple(measured.tolist()),
        source="log",
        statistic=statistic,
    )
    step_s = global_batch / rate
    p5_s, p95_s = np.quantile(steps_s, [0.05, 0.95])
    timing = Timing(
        warmup_steps=len(rates) - len(measured),
        warmup_stable=None,
        measured_steps=len(measured),
        step_time_s=step_s,
        step_time_s_low=global_batch / high,
        step_time_s_high=global_batch / low,
        step_time_s_p5=float(p5_s),
        step_time_s_p95=float(p95_s),
        blocks_step_time_s=tuple(steps_s.tolist()),
        blocks_steps=(1,) * len(measured),
        block_variation=variation(steps_s),
        drift_fraction=drift(steps_s),
        rank_step_time_s_min=step_s,
        rank_step_time_s_max=step_s,
        straggler_fraction=None,
        data_wait_fraction=None,
        exposed_comm_fraction=None,
        startup_s=startup_s,
        wall_s=wall_s,
    )
    return throughput, timing
