"""From the step times of the ranks, or the rates in a log, to throughput and timing of a run. Pure.

Method: Hoefler and Belli (SC'15) and MLPerf. Steps after the warm-up are grouped into blocks; a block's time is the
maximum over ranks, its samples the sum over ranks. ``statistic`` computes the figures from them. Rates that a program
prints are weak evidence, for programs that cannot be instrumented.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.common.files import file_text, read_bytes
from ddp_ladder.common.findings import Finding, remark
from ddp_ladder.common.formats import significant
from ddp_ladder.measuring.owners import covered_s
from ddp_ladder.measuring.statistic import PerBlock, Warmup, median, statistic_of
from ddp_ladder.nodes.critical_rank import LEAST_TIMED_STEPS, Exchange, LoaderSpeeds, RankSteps, StepParts, step_parts
from ddp_ladder.platform.accelerators import is_gpu
from ddp_ladder.records.raw_files import RankFiles
from ddp_ladder.records.raw_models import RankPhases, Source
from ddp_ladder.records.record import MEDIAN_OF_BLOCKS, Rank, Statistic, Throughput, Timing
from ddp_ladder.records.steps import Steps

MIN_BLOCKS, MAX_BLOCKS = 10, 200
BLOCK_TIME_S = 1.0


def block_edges(rows_s: NDArray[np.float64]) -> list[NDArray[np.intp]]:
    """Return the indices of the rows of each block: at least 10 blocks, of 1 s each if the run is long enough."""
    rows = len(rows_s)
    length = min(math.ceil(BLOCK_TIME_S / median(rows_s)), rows // MIN_BLOCKS)
    length = max(length, 1, math.ceil(rows / MAX_BLOCKS))
    return np.array_split(np.arange(rows), max(1, rows // length))


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
    measured = [rank.after(warmup.steps) for rank in ranks]
    times = np.stack([each.step_time_s for each in measured])  # ranks x rows, s
    waits = np.stack([each.data_wait_s for each in measured])
    samples = np.stack([each.samples for each in measured]).sum(axis=0)
    size, slowest_s = measured[0].size, times.max(axis=0)
    blocks = block_edges(slowest_s)
    block_time_s = np.array([times[:, block].sum(axis=1) for block in blocks]).max(axis=1)
    steps = np.array([size[block].sum() for block in blocks])
    rates = PerBlock(np.add.reduceat(samples, [block[0] for block in blocks]), block_time_s)
    step_times = PerBlock(block_time_s, steps)
    statistic = statistic_of([rates])
    rate, rate_low, rate_high = rates.with_interval(statistic)
    median_step = float(step_times.of(MEDIAN_OF_BLOCKS))
    p5_s, p95_s = np.quantile(slowest_s / size, [0.05, 0.95])
    return (
        Throughput(
            samples_per_s=rate,
            samples_per_s_low=rate_low,
            samples_per_s_high=rate_high,
            samples_per_s_total=float(samples.sum() / block_time_s.sum()),
            samples_per_s_end_to_end=sum(int(rank.samples[1:].sum()) for rank in ranks) / training_s
            if training_s
            else None,
            blocks_samples_per_s=tuple(rates.values.tolist()),
            source=source,
            statistic=statistic,
        ),
        Timing(
            warmup_steps=warmup.steps,
            warmup_stable=warmup.stable,
            measured_steps=int(size.sum()),
            step_time_s=float(step_times.of(statistic)),
            step_time_s_p5=float(p5_s),
            step_time_s_p95=float(p95_s),
            blocks_step_time_s=tuple(step_times.values.tolist()),
            blocks_steps=tuple(steps.tolist()),
            drift_fraction=drift(step_times.values),
            data_wait_fraction=data_wait_fraction(waits, times),
            exposed_comm_fraction=median(exposed_comm_s) / median_step if exposed_comm_s else None,
            startup_s=startup_s,
            wall_s=wall_s,
        ),
    )


def data_wait_fraction(wait_s: NDArray[np.float64], step_time_s: NDArray[np.float64]) -> float | None:
    """Return the fraction of the step time spent waiting for data; None if there are no steps."""
    return float(wait_s.sum() / step_time_s.sum()) if step_time_s.size else None


def drift(step_times_s: NDArray[np.float64]) -> float | None:
    """Return the fraction by which the last third of the blocks is slower than the first (medians); None below 3."""
    third = len(step_times_s) // 3
    if not third:
        return None
    return median(step_times_s[-third:]) / median(step_times_s[:third]) - 1


def printed_rates(log: Path, pattern: str) -> tuple[float, ...]:
    """Return the samples per second in a log, in order; what is not a number above 0 is left out.

    Empty if there is no log.
    """
    rates = []
    for line in (file_text(log) or "").split("\n"):  # also each state of a progress bar, which ends with \r
        for match in re.finditer(pattern, line):
            with contextlib.suppress(ValueError):
                rates.append(float(match[1] or ""))
    return tuple(rate for rate in rates if 0 < rate < math.inf)


def log_figures(
    rates: tuple[float, ...], warmup_steps: int, global_batch: int, wall_s: float
) -> tuple[Throughput, Timing]:
    """Return throughput and timing from at least one printed rate; a step is assumed to use the planned global batch.

    Each printed rate is a block, and all blocks have equally many steps; at most half of them are warm-up.
    """
    measured = np.array(rates[min(warmup_steps, len(rates) // 2) :])
    steps_s = global_batch / measured
    per_block = PerBlock(np.full(len(measured), float(global_batch)), steps_s)
    statistic = statistic_of([per_block])
    rate, low, high = per_block.with_interval(statistic)
    throughput = Throughput(
        samples_per_s=rate,
        samples_per_s_low=low,
        samples_per_s_high=high,
        samples_per_s_total=float(global_batch / steps_s.mean()),
        blocks_samples_per_s=tuple(measured.tolist()),
        source="log",
        statistic=statistic,
    )
    p5_s, p95_s = np.quantile(steps_s, [0.05, 0.95])
    timing = Timing(
        warmup_steps=len(rates) - len(measured),
        measured_steps=len(measured),
        step_time_s=global_batch / rate,
        step_time_s_p5=float(p5_s),
        step_time_s_p95=float(p95_s),
        blocks_step_time_s=tuple(steps_s.tolist()),
        blocks_steps=(1,) * len(measured),
        drift_fraction=drift(steps_s),
        wall_s=wall_s,
    )
    return throughput, timing


DISTURBED = 7.4  # median absolute deviations: five standard deviations of a normal distribution


def parts_of_run(ranks: Sequence[RankFiles], nodes: Sequence[int], warmup: Warmup, statistic: Statistic) -> StepParts:
    """Return the parts of a run's mean step. ranks: all with the same number of steps, more than the warm-up's.

    nodes: of each rank. statistic: a median of blocks leaves out what disturbed few of them, and so does this. Of a run
    with blocks of steps, whose times DDP has for the single steps beside them, the step is the mean of these.
    """
    single = [rank.steps.single_after(warmup.steps) for rank in ranks]
    is_timed = all(each.count and each.ddp is not None for each in single)
    measured = single if is_timed else [rank.steps.after(warmup.steps) for rank in ranks]
    times_s = np.stack([each.mean_step_s for each in measured])
    waits_s = np.stack([each.data_wait_s / each.size for each in measured])
    slowest_s = times_s.max(axis=0)
    used = _undisturbed(slowest_s) if statistic == MEDIAN_OF_BLOCKS else np.ones(len(slowest_s), bool)
    timed, compute_s, comm_s, overlap_s = used, None, None, None
    of_ddp = [each.ddp for each in measured if each.ddp is not None]
    if len(of_ddp) == len(ranks):
        times_timed = np.bincount(np.concatenate([of_rank.rows for of_rank in of_ddp]), minlength=len(used))
        on_all = used & (times_timed == len(ranks))
        if on_all.sum() >= LEAST_TIMED_STEPS:
            timed = on_all
            of_timed = [of_rank.times_s[on_all[of_rank.rows]] for of_rank in of_ddp]
            forward_s, backward_s, comm_s, overlap_s = np.stack(of_timed, axis=1).T
            compute_s = forward_s + backward_s
    on_gpus = is_gpu(ranks[0].end.device.kind)
    others_s = None  # a step in collectives that DDP does not time, ranks x rows
    # Without its times, what DDP, or a library of its own, sends is not known.
    if comm_s is not None or not any(rank.end.ddp or not rank.end.communication for rank in ranks):
        found = [steps.collectives_s / steps.size for steps in measured if steps.collectives_s is not None]
        is_known = len(found) == len(ranks) and not np.isnan(found).any()
        others_s = np.stack(found)[:, timed] if is_known else None
    of_each = [_exchanges_of(rank) for rank in ranks]
    parts = step_parts(
        RankSteps(times_s[:, timed], waits_s[:, timed], compute_s, comm_s, overlap_s, on_gpus, others_s, of_each),
        slowest_s[used],
        timed[used],
        nodes,
        _loaders(ranks),
    )
    return parts.replace(begin_wait_fraction=_begin_wait_fraction(ranks, warmup))


def _begin_wait_fraction(ranks: Sequence[RankFiles], warmup: Warmup) -> float | None:
    """Return which part of the waits for data is in the first step of a pass; None unless workers load the data."""
    begins_s = all_s = 0.0
    for rank in ranks:
        if rank.end.phases is None or not (rank.end.loader and rank.end.loader.num_workers):
            return None
        numbers = np.cumsum(rank.steps.size)
        used = (rank.steps.size == 1) & (numbers > warmup.steps)
        begins_s += float(rank.steps.data_wait_s[used & np.isin(numbers, rank.end.phases.epoch_steps)].sum())
        all_s += float(rank.steps.data_wait_s[used].sum())
    return begins_s / all_s if all_s else None


def _exchanges_of(rank: RankFiles) -> list[Exchange]:
    """Return the collectives of a rank by name, in the mean of its steps from the second on."""
    steps = max(1, rank.steps.count - 1)
    return [
        Exchange(
            name=each.name,
            calls=each.calls / steps,
            bytes=each.bytes / steps,
            seconds=None if each.seconds is None else each.seconds / steps,
        )
        for each in rank.end.communication
    ]


def _undisturbed(slowest_s: NDArray[np.float64]) -> NDArray[np.bool_]:
    blocks = block_edges(slowest_s)
    means_s = np.array([slowest_s[block].mean() for block in blocks])
    usual_s = median(means_s)
    most_s = usual_s + DISTURBED * max(median(np.abs(means_s - usual_s)), 0.01 * usual_s)
    return np.repeat(means_s <= most_s, [*map(len, blocks)])


def _loaders(ranks: Sequence[RankFiles]) -> LoaderSpeeds:
    workers = [rank.end.loader.num_workers if rank.end.loader else None for rank in ranks]
    batches_s = [rank.end.worker_batch_s for rank in ranks]
    of_each = [
        batch_s / n if n and batch_s is not None else None for n, batch_s in zip(workers, batches_s, strict=True)
    ]
    return LoaderSpeeds(any(n != 0 for n in workers), of_each)


NOTABLE_EXCESS = 0.1  # of the time of the whole loop over that of its steps
NOTABLE_S = 0.05


def remark_on_loop(
    samples_per_s: float,
    ranks: Sequence[tuple[Steps, RankPhases | None]],
    warmup_steps: int,
    is_witnessed: bool = False,
) -> Iterator[Finding]:
    """Yield a remark if the loop took longer than its steps, by more than known validations and checkpoints explain.

    What is in no step, and is neither a validation that passes over a DataLoader nor torch.save, may be training that
    the instrument does not see: a rollout every few steps, in eval mode or between passes. So the run is remarked, and
    its gate is not certain. The loop lasts from the end of the warm-up to that of the last step. One interruption makes
    no remark: whether there is one is judged without the longest time in no step. The figure in the remark is that of
    the whole loop. That steps differ is shown by their statistic. What one rank alone does beside its steps is not
    training, nor is it in a run whose steps, as a witness has seen (``is_witnessed``), trained on drawn batches alone.
    """
    first = max(warmup_steps, 1)
    known_s, elapsed_s, rests_s, beside_s = [], [], [], []
    for steps, phases in ranks:
        if steps.ended_at_s is None or steps.count < first + 2:
            return
        edges_s = steps.ended_at_s[steps.rows_of(first) - 1 :]
        known = (*phases.passes_s, *phases.saves_s) if phases else ()
        elapsed_s.append(np.diff(edges_s))
        known_s.append(covered_s(edges_s, known))
        rests_s.append(covered_s(edges_s, phases.rests_s if phases and is_witnessed else ()))
        beside_s.append(covered_s(edges_s, phases.beside_s if phases else ()))
    # Ranks may wait for one that validates alone. What is known may be a part of a step.
    step_s = np.max([steps.step_time_s[steps.rows_of(first) :] for steps, _ in ranks], axis=0)
    loop_s = np.max(elapsed_s, axis=0)
    alone_s = np.max(beside_s, axis=0) - np.min(beside_s, axis=0)
    known = np.max(known_s, axis=0) + np.maximum(alone_s, np.max(rests_s, axis=0))
    explained_s = np.minimum(known, np.maximum(loop_s - step_s, 0.0))
    loop_s = loop_s - explained_s
    samples = np.sum([steps.samples[steps.rows_of(first) :] for steps, _ in ranks], axis=0)
    rest = np.arange(len(loop_s)) != np.argmax(loop_s - step_s)
    loop, in_steps = loop_s[rest].sum(), step_s[rest].sum()
    if loop - in_steps > max(NOTABLE_EXCESS * in_steps, NOTABLE_S):
        whole_s = np.sum(elapsed_s, axis=1).max() - explained_s.sum()
        yield remark(
            "whole loop",
            f"the figure is {significant(samples_per_s)} samples/s, but samples / time of the whole loop is "
            f"{significant(samples.sum() / whole_s)} samples/s, without known validations and checkpoints",
            "look at what the script does between its steps: if it is part of the training (a rollout, data that "
            "the model makes), only the second figure holds; if it is a validation, the first one does",
        )


PARTS = ("spawn", "import_torch", "process_group", "first_step")
"""Of a start-up; ``spawn`` is from the launcher's start to the first line in the rank."""


def startup_of(ranks: Sequence[Rank]) -> dict[str, float | None] | None:
    """Return ``startup_s`` and its parts, of the rank with the largest one, so that all are of one process.

    All parts but ``startup_compile_s`` (mostly in the first step) add up; ``startup_script_s`` is the rest: the script
    itself between the others. A part is None if it is unknown, and all is None without a total.
    """
    known = [(total, rank.startup_s) for rank in ranks if (total := rank.startup_s.get("total")) is not None]
    if not known:
        return None
    total_s, seen = max(known, key=lambda pair: pair[0])
    rest_s = total_s - sum(seen.get(part) or 0.0 for part in PARTS)
    parts = {f"startup_{part}_s": seen.get(part) for part in (*PARTS, "compile")}
    # The rest is not negative, though the parts come from different clocks.
    return {**parts, "startup_script_s": max(0.0, rest_s), "startup_s": total_s}


HOST, KERNEL, STEP = "cpu_op", "kernel", "ProfilerStep#"


def exposed_comm_fraction(trace: Path) -> float | None:
    """Return the share of the traced steps in which NCCL or Gloo worked and no computation did.

    None without a collective or a step. Computation is that of the GPU's kernels; on CPUs that of torch's operators.
    Raises OSError, EOFError, zlib.error, ValueError or KeyError for a damaged file.
    """
    events = [each for each in json.loads(gzip.decompress(read_bytes(trace)))["traceEvents"] if "dur" in each]
    steps = _spans(each for each in events if each["name"].startswith(STEP))
    collectives = [each for each in events if _is_collective(each)]
    kernels = [each for each in events if each.get("cat") == KERNEL and not _is_collective(each)]
    operators = [each for each in events if each.get("cat") == HOST and each["name"].startswith("aten::")]
    if not steps or not collectives:
        return None
    computed, edges = _spans(kernels or operators), np.array([min(steps)[0], max(end for _, end in steps)])
    both, alone = covered_s(edges, [*computed, *_spans(collectives)]), covered_s(edges, computed)
    return float((both - alone).sum() / (edges[1] - edges[0]))


def _is_collective(event: dict[str, Any]) -> bool:
    """Return True for a kernel of NCCL or RCCL, and for the time that Gloo's thread works on a collective."""
    name = event["name"]
    return name.startswith("gloo:") or (event.get("cat") == KERNEL and name.startswith("nccl"))


def _spans(events: Iterable[dict[str, Any]]) -> list[tuple[float, float]]:
    """Return begin and end of each, in microseconds."""
    return [(float(each["ts"]), float(each["ts"]) + float(each["dur"])) for each in events]
