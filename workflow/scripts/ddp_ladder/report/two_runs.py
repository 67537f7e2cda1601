"""Two runs side by side, as text for the terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddp_ladder.common import formats
from ddp_ladder.common.formats import significant
from ddp_ladder.records.fingerprint import distinct_words, must_match
from ddp_ladder.records.own_runs import NO_SPEC
from ddp_ladder.records.record import Record

ONCE = "The interval is that of one run over its blocks of steps: two runs of the same settings may differ by more."
OF_THE_LADDER = ("script", "args_template", "threads_per_rank")  # not known of a run that it did not start


def two_runs(runs: Sequence[tuple[str, Record]]) -> str:
    """Return the figures of two named runs, their ratio, and the fields in which they are not alike."""
    (first_name, first), (second_name, second) = runs
    columns = [dict(_figures(record)) for record in (first, second)]
    lines = formats.text_table(
        ("", first_name, second_name), [(name, *(c[name] for c in columns)) for name in columns[0]]
    )
    unlike = [*_unlike(first, second)]
    if first.throughput and second.throughput and first.throughput.samples_per_s:
        ratio = second.throughput.samples_per_s / first.throughput.samples_per_s
        per_rank = ratio * first.spec.world_size / second.spec.world_size
        lines += [
            "",
            f"second / first: {significant(ratio)} times the throughput, {significant(per_rank)} times per rank",
        ]
        lines.append(ONCE)
    lines += ["", "Not like for like:" if unlike else "Like for like: no field of the fingerprint differs.", *unlike]
    for name, record in runs:
        lines += [f"{name}: {record.failure.verdict}: {record.failure.why}"] if record.failure else []
        lines += [f"{name}: {remark.what}" for remark in record.remarks]
    return "\n".join(lines)


def _figures(record: Record) -> Iterator[tuple[str, str]]:
    rate, timing, world = record.throughput, record.timing, record.world
    yield "ranks", f"{formats.whole(world.size)} on {formats.count(len(set(world.hosts)), 'host')}"
    ends = (significant(rate.samples_per_s_low), significant(rate.samples_per_s_high)) if rate else ("", "")
    yield "samples/s", f"{significant(rate.samples_per_s)} {formats.interval(*ends)}" if rate else formats.UNKNOWN
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
    for field in must_match(first.spec.mode):
        values = field.differ(first, second)
        if values and not (one_is_own and field.name in OF_THE_LADDER):
            here, there = distinct_words(field.name, *values)
            yield f"  {field.name}: {here} / {there}"
