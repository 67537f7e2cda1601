"""Two runs side by side, as text for the terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ddp_ladder_instrument.contract import NO_SPEC

from ddp_ladder.common import formats
from ddp_ladder.common.formats import significant
from ddp_ladder.measuring.fingerprint import MUST_MATCH, MustMatch, distinct_words, global_batch_seen, unlike
from ddp_ladder.records.record import Record

ONCE = "The interval is that of one run over its blocks of steps: two runs of the same settings may differ by more."
ALIKE = "Like for like: no field of the fingerprint differs"
FIELDS = (
    *MUST_MATCH,
    MustMatch(
        "backward passes in a step, whose gradients are accumulated",
        lambda record: record.fingerprint.backward_passes,
        where_known=True,
    ),
)
OF_A_RANK, OF_ALL = "samples of a rank in a step", "samples of all ranks in a step"
# The scaling of runs with different numbers of ranks that differ in this batch alone, and what they keep.
SCALING = {OF_A_RANK: ("strong", "all ranks together have"), OF_ALL: ("weak", "each rank has")}
OF_THE_LADDER = ("script", "args_template", "threads_per_rank")  # not known of a run that it did not start


def two_runs(runs: Sequence[tuple[str, Record]]) -> str:
    """Return the figures of two named runs, their ratio, and the fields in which they are not alike."""
    (first_name, first), (second_name, second) = runs
    columns = [dict(_figures(record)) for record in (first, second)]
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    lines = formats.text_table(("", first_name, second_name), rows)
    unlike = [*_unlike(first, second)]
    if first.throughput and second.throughput and first.throughput.samples_per_s:
        ratio = second.throughput.samples_per_s / first.throughput.samples_per_s
        per_rank = ratio * first.spec.world_size / second.spec.world_size
        ratios = f"{significant(ratio)} times the throughput, {significant(per_rank)} times per rank"
        lines += ["", f"second / first: {ratios}", ONCE]
    lines += ["", "Not like for like:" if unlike else f"{ALIKE}{_scaling(first, second)}.", *unlike]
    for name, record in runs:
        lines += [f"{name}: {record.failure.verdict}: {record.failure.why}"] if record.failure else []
        lines += [f"{name}: {remark.what}" for remark in record.remarks]
    return "\n".join(lines)


def _figures(record: Record) -> Iterator[tuple[str, str]]:
    counted = record.throughput and record.throughput.samples_per_s > 0  # without a DataLoader nothing is
    rate, timing, world = record.throughput if counted else None, record.timing, record.world
    yield "ranks", f"{formats.whole(world.size)} on {formats.count(len(set(world.hosts)), 'host')}"
    ends = (significant(rate.samples_per_s_low), significant(rate.samples_per_s_high)) if rate else ("", "")
    yield "samples/s", f"{significant(rate.samples_per_s)} {formats.interval(*ends)}" if rate else formats.UNKNOWN
    yield "samples are", rate.source if rate else formats.UNKNOWN
    yield "samples / time", significant(rate.samples_per_s_total if rate else None)
    batch = _global_batch(record)
    per_rank = f" ({batch / record.spec.world_size:,.10g} per rank)" if batch else ""
    yield "samples in a step", f"{formats.whole(batch)}{per_rank}"
    yield "backward passes in a step", formats.whole(record.fingerprint.backward_passes)
    yield "step (ms)", formats.milliseconds(timing.step_time_s if timing else None)
    yield "measured steps", formats.whole(timing.measured_steps if timing else None)
    yield "data wait", formats.share(timing.data_wait_fraction if timing else None)
    yield "communication not hidden", formats.share(timing.exposed_comm_fraction if timing else None)
    for where in ("device", "host"):
        sizes = [size for rank in record.ranks if (size := rank.peak_memory_bytes.get(where))]
        yield f"peak memory, {where} (MB)", formats.megabytes(max(sizes, default=None))
    yield "start-up (s)", significant(timing.startup_s if timing else None)


def _unlike(first: Record, second: Record) -> Iterator[str]:
    one_is_own = (first.spec_hash == NO_SPEC) != (second.spec_hash == NO_SPEC)
    fields = [field for field in FIELDS if not (one_is_own and field.name in OF_THE_LADDER)]
    yield from (_differs(*difference) for difference in unlike(first, second, fields))
    if None in (_global_batch(first), _global_batch(second)):
        yield f"  {OF_ALL}: not known of both runs"
    batches = _batches(first, second)
    # Runs of other numbers of ranks keep one of the two batches: weak or strong scaling.
    if len(batches) == len(SCALING) or (batches and first.spec.world_size == second.spec.world_size):
        yield from (_differs(name, *values) for name, values in batches.items())


def _global_batch(record: Record) -> int | None:
    """Return the samples of a step of all ranks; None if unknown: a run that the ladder did not start has no plan."""
    is_own = record.spec_hash == NO_SPEC
    return record.fingerprint.global_batch if is_own else global_batch_seen(record)


def _differs(name: str, *values: Any) -> str:
    return f"  {name}: {' / '.join(distinct_words(name, *values))}"


def _batches(first: Record, second: Record) -> dict[str, tuple[str, str]]:
    """Return the batches of a rank and of all ranks in which two runs differ, of a whole step; none if unknown."""
    batches = (_global_batch(first), _global_batch(second))
    if batches[0] is None or batches[1] is None:
        return {}
    pairs = {
        OF_A_RANK: (batches[0] / first.spec.world_size, batches[1] / second.spec.world_size),
        OF_ALL: (batches[0], batches[1]),
    }
    return {name: (f"{a:,.10g}", f"{b:,.10g}") for name, (a, b) in pairs.items() if a != b}


def _scaling(first: Record, second: Record) -> str:
    """Return what runs of different numbers of ranks are, of which one batch alone is the same; else nothing."""
    differing = [*_batches(first, second)]
    if not differing or first.spec.world_size == second.spec.world_size:
        return ""
    scaling, kept = SCALING[differing[0]]
    return f"; as in {scaling} scaling, {kept} as many samples in a step"
