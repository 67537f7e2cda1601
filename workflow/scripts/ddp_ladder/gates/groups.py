"""Groups of repeats of one variant x mode x scale, and the baselines of each group. Pure."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from ddp_ladder.gates.interval import JOBS_DIFFER_PERCENT, Estimate, LogMean, Variance
from ddp_ladder.plan.plan import RunSpec, first_scale
from ddp_ladder.records.fingerprint import Difference, all_differences
from ddp_ladder.records.record import MEDIAN_OF_BLOCKS, SAMPLES_PER_TIME, Record, Statistic, Throughput, Timing
from ddp_ladder.records.statistic import (
    RANGE_FREEDOM,
    PerBlock,
    median,
    rates,
    recurring_error,
    statistic_of,
    step_times,
)
from ddp_ladder.settings.config_keys import GateThresholds
from ddp_ladder.settings.terms import PLAIN_VARIANT, REFERENCE_VARIANT, Scale


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
class Group:
    """All repeats of one variant x mode x scale."""

    specs: tuple[RunSpec, ...]
    good: tuple[Good, ...]
    failed: tuple[Record, ...]  # started and failed
    left_out: tuple[Record, ...]  # not started, on purpose
    may_differ: Collection[str]
    baseline: Scale  # of its efficiency
    statistic: Statistic = MEDIAN_OF_BLOCKS
    jobs_differ_percent: float = JOBS_DIFFER_PERCENT  # usual standard deviation between jobs of this scale

    @property
    def jobs(self) -> list[Hashable]:
        """Return the job of each good run."""
        return [job_of(run.record) for run in self.good]

    @property
    def first(self) -> RunSpec:
        return self.specs[0]

    @cached_property
    def all_differences(self) -> tuple[Difference, ...]:
        """Return the differences between the group's own repeats."""
        pairs = ((self.good[0].record, other.record) for other in self.good[1:])
        return tuple(dict.fromkeys(found for pair in pairs for found in all_differences(*pair)))

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Return the differences between the group's own repeats that forbid a ratio."""
        return self.forbidden(self.all_differences)

    def forbidden(self, found: Sequence[Difference]) -> tuple[Difference, ...]:
        """Return the differences that the user does not allow."""
        return tuple(item for item in found if item.field not in self.may_differ)

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
        """Return the throughput with its uncertainty."""
        return self._log([run.samples_per_s(self.statistic) for run in self.good], [run.rates for run in self.good])

    def speedup_over(self, baseline: Group) -> Estimate:
        """Return the throughput over that of a baseline, and the ends of its interval, None if they are not known."""
        if self is baseline:
            return 1.0, 1.0, 1.0  # by definition, not by measurement
        speedup = self.samples_per_s / baseline.samples_per_s
        return speedup, *self.log_rate.over(baseline.log_rate).interval(speedup)

    @property
    def log_step_time(self) -> LogMean:
        """Return the step time with its uncertainty."""
        return self._log([run.step_time_s(self.statistic) for run in self.good], [run.step_times for run in self.good])

    def _log(self, figures: Sequence[float], runs: Sequence[PerBlock]) -> LogMean:
        steps = Variance()
        if self.statistic == SAMPLES_PER_TIME:
            steps = Variance(recurring_error(runs) ** 2, RANGE_FREEDOM)
        return LogMean.of(figures, self.jobs, steps, self.jobs_differ_percent)


def job_of(record: Record) -> Hashable:
    """Return id and nodes of a run's job: requeued, it may have other nodes."""
    return record.job and (record.job.id, record.world.nodes)


Groups = dict[tuple[str, str, Scale], Group]  # by mode, variant and scale
Gates = Mapping[str, GateThresholds]  # by stage


def groups_of(
    runs: Sequence[RunSpec],
    records: Mapping[str, Record],
    may_differ: Collection[str],
    gates: Gates = MappingProxyType({}),
) -> Groups:
    """Return the groups by mode, variant and scale, in this order. Arguments: see ``scale_points``."""
    modes: list[str] = list(dict.fromkeys(run.mode for run in runs))
    variants = list(dict.fromkeys(run.variant for run in runs))
    scales = list(dict.fromkeys(run.scale for run in runs))
    specs: dict[tuple[str, str, Scale], list[RunSpec]] = {}
    baseline = first_scale(runs)
    for run in runs:
        specs.setdefault((run.mode, run.variant, run.scale), []).append(run)
    order = sorted(specs, key=lambda key: (modes.index(key[0]), variants.index(key[1]), scales.index(key[2])))
    return {key: _group(specs[key], records, may_differ, baseline, gates) for key in order}


def _group(
    specs: Sequence[RunSpec], records: Mapping[str, Record], may_differ: Collection[str], baseline: Scale, gates: Gates
) -> Group:
    there = [records[spec.name] for spec in specs if spec.name in records]
    good = tuple(
        Good(record, record.throughput, record.timing)
        for record in there
        if record.status == "ok" and record.throughput and record.timing
    )
    bad = [record for record in there if all(record is not run.record for run in good)]
    return Group(
        specs=tuple(specs),
        good=good,
        failed=tuple(record for record in bad if record.job is not None),
        left_out=tuple(record for record in bad if record.job is None),
        may_differ=may_differ,
        baseline=baseline,
        jobs_differ_percent=gates.get(specs[0].stage, GateThresholds()).jobs_differ_percent,
    )


def with_one_statistic(groups: Groups) -> Groups:
    """Give all scales of a mode and variant one statistic: samples / time if any of them needs it."""
    needed = {_series(group) for group in groups.values() if group.needs_samples_per_time}
    return {
        key: replace(group, statistic=SAMPLES_PER_TIME if _series(group) in needed else MEDIAN_OF_BLOCKS)
        for key, group in groups.items()
    }


def _series(group: Group) -> tuple[str, str]:
    """Return mode and variant; the plain baseline belongs to the reference variant, whose script it runs."""
    return group.first.mode, REFERENCE_VARIANT if group.first.is_plain else group.first.variant


@dataclass(frozen=True)
class Baselines:
    """The two baselines of a group; None if the plan has none."""

    launched: Group | None  # the first scale of the same variant and mode; of one GPU a process group of one
    plain: Group | None  # the script alone

    @classmethod
    def of(cls, group: Group, groups: Groups) -> Baselines:
        spec, scale = group.first, group.baseline
        return cls(
            launched=groups.get((spec.mode, spec.variant, scale)),
            plain=groups.get((spec.mode, PLAIN_VARIANT, scale)),
        )
