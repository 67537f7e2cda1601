"""Throughput read from a program's log.

It is weak evidence, for programs that cannot be instrumented, and a check of what the instrument counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.blocks import drift, variation
from ddp_ladder.records.record import Remark, Throughput, Timing
from ddp_ladder.records.statistic import PerBlock, statistic_of

PRINTED = "printed throughput"
APART = 0.05  # of the counted samples/s
OF_ONE_RANK = "nothing has to be done if that is what the script means to print"
USUAL_REASONS = (
    "find out which of both is right before the figure is used. Usual reasons: time that one of both leaves out "
    "(validation, checkpoints, the wait for data, first steps); padding; batches that are drawn and not trained on; "
    "several optimizer steps per iteration (workload.samples_per_step)"
)


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


def remarks(spec: RunSpec, counted: float, log: Path) -> tuple[Remark, ...]:
    """Compare what the script prints with what was counted (samples/s); a difference above APART is a remark.

    There is none without workload.throughput_regex.
    """
    if spec.throughput_regex is None:
        return ()
    rates = measured_rates(printed_rates(log, spec.throughput_regex), spec.warmup_steps)
    if not rates:
        what = (
            f"not compared with what was counted: workload.throughput_regex ({spec.throughput_regex}) matches no line"
        )
        return (Remark(name=PRINTED, what=what, next="correct it after a line of the log that has samples per second"),)
    printed = float(np.median(rates))
    times = printed / counted if counted else math.inf
    if abs(times - 1) <= APART:
        return ()
    lines = f"median of {len(rates)} lines after the warm-up" if len(rates) > 1 else "one line"
    both = f"the script prints {printed:,.4g} samples/s ({lines}), and {counted:,.4g} were counted: "
    ranks = spec.world_size
    if ranks > 1 and abs(times * ranks - 1) <= APART:
        return (Remark(name=PRINTED, what=f"{both}it prints the rate of one of the {ranks} ranks", next=OF_ONE_RANK),)
    apart = f"{100 * abs(times - 1):.0f} % {'more' if times > 1 else 'less'}"
    if ranks > 1 and abs(times / ranks - 1) <= APART:
        apart = f"{ranks} times as many, the number of ranks"
    return (Remark(name=PRINTED, what=f"{both}the script says {apart}", next=USUAL_REASONS),)


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
