"""Groups of repeats of one variant x mode x scale, the baselines of each group, and the parts of its step. Pure.

The parts of a step are means over the repeats and add up to it. Each run's are in its record; see docs/attribution.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ddp_ladder.common.formats import grouped, in_short, rank_numbers
from ddp_ladder.gates.interval import LogMean, Variance
from ddp_ladder.gates.points import StepFacts
from ddp_ladder.measuring.fingerprint import Difference, all_differences
from ddp_ladder.measuring.statistic import (
    RANGE_FREEDOM,
    PerBlock,
    median,
    rates,
    recurring_error,
    statistic_of,
    step_times,
)
from ddp_ladder.nodes.critical_rank import Kind
from ddp_ladder.plan.plan import RunSpec, first_scale
from ddp_ladder.platform.accelerators import is_gpu
from ddp_ladder.records.record import (
    LEFT_OUT,
    MEDIAN_OF_BLOCKS,
    SAMPLES_PER_TIME,
    Record,
    Statistic,
    Throughput,
    Timing,
)
from ddp_ladder.settings.keys import GateThresholds
from ddp_ladder.settings.terms import REFERENCE_VARIANT, Scale


@dataclass(frozen=True)
class Good:
    """A successful run: its figures count."""

    record: Record
    throughput: Throughput
    timing: Timing

    @property
    def rates(self) -> PerBlock:
        return rates(self.throughput, self.timing)

    @property
    def step_times(self) -> PerBlock:
        return step_times(self.timing)

    def samples_per_s(self, statistic: Statistic) -> float:
        """Return the throughput by a statistic: the record's own figure if it is of that statistic."""
        own = self.throughput.statistic == statistic
        return self.throughput.samples_per_s if own else float(self.rates.of(statistic))

    def step_time_s(self, statistic: Statistic) -> float:
        own = self.throughput.statistic == statistic
        return self.timing.step_time_s if own else float(self.step_times.of(statistic))


@dataclass(frozen=True)
class RepeatGroup:
    """All repeats of one variant x mode x scale."""

    specs: tuple[RunSpec, ...]
    good: tuple[Good, ...]
    failed: tuple[Record, ...]
    left_out: tuple[Record, ...]  # not started, on purpose
    may_differ: Collection[str]  # fields of the fingerprint
    baseline: Scale  # of its efficiency
    jobs_differ_percent: float  # usual standard deviation between jobs of this scale
    statistic: Statistic = MEDIAN_OF_BLOCKS

    @property
    def jobs(self) -> list[Hashable]:
        return [job_of(run.record) for run in self.good]

    @property
    def first(self) -> RunSpec:
        return self.specs[0]

    @cached_property
    def all_differences(self) -> tuple[Difference, ...]:
        """Return the differences between the group's own repeats."""
        records = [run.record for run in self.good]
        return tuple(dict.fromkeys(item for other in records[1:] for item in all_differences(records[0], other)))

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Return the differences between the group's own repeats that forbid a ratio."""
        return self.forbidden(self.all_differences)

    def forbidden(self, differences: Sequence[Difference]) -> tuple[Difference, ...]:
        """Return those that the user does not allow."""
        return tuple(item for item in differences if item.field not in self.may_differ)

    @property
    def needs_samples_per_time(self) -> bool:
        """Return True if a median of blocks would hide slow steps: in one of the runs, or in all together."""
        of_runs = {run.throughput.statistic for run in self.good}
        together = statistic_of([run.rates for run in self.good]) if self.good else MEDIAN_OF_BLOCKS
        return SAMPLES_PER_TIME in (*of_runs, together)

    @property
    def samples_per_s(self) -> float:
        return median([run.samples_per_s(self.statistic) for run in self.good])

    @property
    def step_time_s(self) -> float:
        return median([run.step_time_s(self.statistic) for run in self.good])

    @cached_property
    def log_rate(self) -> LogMean:
        return self._log([run.samples_per_s(self.statistic) for run in self.good], [run.rates for run in self.good])

    @property
    def log_step_time(self) -> LogMean:
        return self._log([run.step_time_s(self.statistic) for run in self.good], [run.step_times for run in self.good])

    def _log(self, figures: Sequence[float], runs: Sequence[PerBlock]) -> LogMean:
        recurs = self.statistic == SAMPLES_PER_TIME
        steps = Variance(recurring_error(runs) ** 2, RANGE_FREEDOM) if recurs else Variance()
        return LogMean.of(figures, self.jobs, steps, self.jobs_differ_percent)


def job_of(record: Record) -> Hashable:
    """Return id and nodes of a run's job: requeued, it may have other nodes."""
    return record.job and (record.job.id, record.world.nodes)


Groups = dict[tuple[str, str, Scale], RepeatGroup]  # by mode, variant and scale
Gates = Mapping[str, GateThresholds]  # by stage


def comparison_key(group: RepeatGroup) -> Hashable:
    """Return mode and variant; the plain baseline belongs to the reference variant, whose script it runs."""
    return group.first.mode, REFERENCE_VARIANT if group.first.is_plain else group.first.variant


def groups_of(
    runs: Sequence[RunSpec],
    records: Mapping[str, Record],
    may_differ: Collection[str],
    gates: Gates,
    compared_by: Callable[[RepeatGroup], Hashable] = comparison_key,
) -> Groups:
    """Return the groups by mode, variant and scale, in this order. Arguments: see ``scale_points``.

    All groups that are compared with each other have one statistic: samples / time if any of them needs it.
    """
    specs, baseline = grouped(((run.mode, run.variant, run.scale), run) for run in runs), first_scale(runs)
    # Each by its first appearance.
    names = [list(dict.fromkeys(part)) for part in zip(*specs, strict=True)]
    order = sorted(specs, key=lambda key: [known.index(part) for known, part in zip(names, key, strict=True)])
    groups = {key: _group(specs[key], records, may_differ, baseline, gates) for key in order}
    needed = {compared_by(group) for group in groups.values() if group.needs_samples_per_time}
    return {
        key: replace(group, statistic=SAMPLES_PER_TIME) if compared_by(group) in needed else group
        for key, group in groups.items()
    }


def _group(
    specs: Sequence[RunSpec], records: Mapping[str, Record], may_differ: Collection[str], baseline: Scale, gates: Gates
) -> RepeatGroup:
    good: list[Good] = []
    failed: list[Record] = []
    left_out: list[Record] = []
    for record in (records[spec.name] for spec in specs if spec.name in records):
        if record.status == "ok" and record.throughput and record.timing:
            good.append(Good(record, record.throughput, record.timing))
        else:
            (left_out if record.failure and record.failure.kind in LEFT_OUT else failed).append(record)
    return RepeatGroup(
        specs=tuple(specs),
        good=tuple(good),
        failed=tuple(failed),
        left_out=tuple(left_out),
        may_differ=may_differ,
        baseline=baseline,
        jobs_differ_percent=gates.get(specs[0].stage, GateThresholds()).jobs_differ_percent,
    )


MEANS = ("own_max_s", "comm_s", "overlap_s", "imbalance_data_s", "imbalance_compute_s")  # beside the parts
STEP_PARTS = ("compute_s", "exposed_comm_s", "data_wait_s", "imbalance_s", "rest_s")


def split_of_repeats(group: RepeatGroup) -> tuple[dict[str, float | None], StepFacts] | None:
    """Return STEP_PARTS in seconds, and facts on the steps: means over the good repeats; None if there are none.

    A part that a repeat does not know is not known. rest_s: what no other part explains.
    """
    runs = [run.record.step for run in group.good if run.record.step and run.record.step.step_s]
    if not runs or len(runs) < len(group.good):
        return None
    step_s = group.step_time_s

    def part(key: str) -> float | None:
        """Return the mean of a part's fractions of each repeat's step, as a part of the scale's."""
        known = [value / run.step_s for run in runs if (value := getattr(run, key)) is not None]
        return step_s * sum(known) / len(known) if len(known) == len(runs) else None

    records = [run.record for run in group.good]
    parts = {name: part(name) for name in STEP_PARTS[:-1]}
    parts["rest_s"] = max(0.0, step_s - sum(value or 0.0 for value in parts.values()))  # not -1e-18
    seen, (kind, slowest, slow_node) = records[0].fingerprint, _held_up(records)
    facts = StepFacts(
        **{name: part(name) for name in MEANS},
        imbalance_kind=kind,
        slowest=slowest,
        slow_node=slow_node,
        timed_steps=min(map(_timed_steps, records)) or None,
        gradient_bytes=seen.gradient_bytes,
        buckets=len(seen.bucket_bytes) if seen.bucket_bytes else None,
        comm_hook=seen.comm_hook,
        exchanges=seen.exchanges,
        others=runs[0].exchanges,
        slow_settings=seen.slow_settings or (),
        on_gpu=is_gpu(records[0].spec.device),
        parameter_dtype=seen.parameter_dtype,
        workers=seen.num_workers,
        begin_wait_fraction=_mean_known(run.begin_wait_fraction for run in runs),
        backend=records[0].world.backend,
        memory_fraction=max((used for record in records if (used := _memory(record))), default=None),
    )
    return parts, facts


def _mean_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _held_up(records: Sequence[Record]) -> tuple[Kind | None, str | None, str | None]:
    """Return how ranks hold up the others, which, and the node that may be left out: StepFacts.

    It varies unless it is the same place in each run.
    """
    kinds = {record.step and record.step.imbalance_kind for record in records}
    if None in kinds:
        return None, None, None
    places = {_slow_place(record) for record in records}
    if len(places) > 1 or "" in places:
        return "varying", None, None
    slow_ranks = records[0].step.slow_ranks if records[0].step else ()
    slow = {rank.host for rank in records[0].ranks if rank.rank in slow_ranks}
    others = {rank.host for rank in records[0].ranks} - slow
    node = slow.pop() if len(records) > 1 and len(slow) == 1 and others else None
    return "persistent" if kinds == {"persistent"} else "occasional", places.pop(), node


def _slow_place(record: Record) -> str:
    """Return ``rank 3 on node2``, or ``ranks 2, 3 on node1``; empty if no rank is slow."""
    slow = [rank for rank in record.ranks if record.step and rank.rank in record.step.slow_ranks]
    hosts = in_short([*dict.fromkeys(rank.host for rank in slow)])
    return f"{rank_numbers([rank.rank for rank in slow])} on {hosts}" if slow else ""


def _timed_steps(record: Record) -> int:
    """Return the steps that DDP timed on all ranks; if they were too few, the fewest of a rank."""
    of_ranks = min((rank.ddp.samples if rank.ddp else 0 for rank in record.ranks), default=0)
    return (record.step.timed_steps if record.step else 0) or of_ranks


def _memory(record: Record) -> float | None:
    """Return the part of its memory that the fullest GPU used; None if it is not known."""
    gpus = record.usage.gpus if record.usage else ()
    known = [g.memory_used_bytes / g.memory_bytes for g in gpus if g.memory_used_bytes is not None and g.memory_bytes]
    return max(known, default=None)
