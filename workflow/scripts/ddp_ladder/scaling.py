"""Scaling: from records to one point per variant x mode x scale. Pure: no files.

Intervals are 95 % percentile intervals of a hierarchical bootstrap (Hoefler and Belli, SC'15):
repeats are drawn first, then blocks inside each drawn repeat; the statistic of the blocks is taken, then the median
over repeats. Ratios draw both of their sides. All points that are compared with each other have the same statistic.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from ddp_ladder.assemble import STILL_RUNNING
from ddp_ladder.evidence import IN_WORDS, STRONGEST
from ddp_ladder.fingerprint import Difference, all_differences, batch_per_gpu_seen, differences
from ddp_ladder.plan import PLAIN_VARIANT, REFERENCE_VARIANT, RunSpec
from ddp_ladder.record import MEDIAN_OF_BLOCKS, SAMPLES_PER_TIME, Failure, Record, Statistic, Throughput, Timing
from ddp_ladder.run_records import CUT_SHORT
from ddp_ladder.settings import GateThresholds, Scale
from ddp_ladder.startup import startup_of
from ddp_ladder.statistic import RESAMPLES, SEED, TAILS, PerBlock, rates, statistic_of, step_times

Status = Literal["ok", "check", "incomplete", "not comparable", "failed", "not run"]
Draws = npt.NDArray[np.float64]

BASELINE = Scale(1, 1)
MOST_EFFICIENCY = GateThresholds().max_efficiency  # above this the baseline, not the scale, is remarkable
TELLING_WAIT = 0.05  # fraction of a step: a difference in data wait worth naming
TELLING_GAP = 0.05  # between samples / time and the median of blocks, or between the first third of a run and the last


@dataclass(frozen=True)
class ScalePoint:
    """What was found at one scale; None where nothing can be said.

    Times in seconds; data_wait_fraction and its like are fractions of the step time.
    """

    variant: str
    mode: str
    stage: str
    nodes: int
    gpus_per_node: int
    world_size: int
    batch_per_gpu: int
    global_batch: int
    repeats: int  # good ones, that the figures are made of
    samples_per_s: float | None = None
    samples_per_s_low: float | None = None
    samples_per_s_high: float | None = None
    speedup: float | None = None
    efficiency: float | None = None
    efficiency_low: float | None = None
    efficiency_high: float | None = None
    step_time_s: float | None = None
    data_wait_fraction: float | None = None
    exposed_comm_fraction: float | None = None
    gpu_hours_per_million_samples: float | None = None
    status: Status = "not run"
    speedup_low: float | None = None
    speedup_high: float | None = None
    step_time_s_low: float | None = None
    step_time_s_high: float | None = None
    straggler_fraction: float | None = None
    startup_s: float | None = None
    startup_spawn_s: float | None = None
    startup_import_torch_s: float | None = None
    startup_process_group_s: float | None = None
    startup_script_s: float | None = None
    startup_first_step_s: float | None = None
    startup_compile_s: float | None = None
    statistic: Statistic = MEDIAN_OF_BLOCKS  # of rate and step time, and so of all ratios
    samples_per_s_total: float | None = None
    samples_per_s_end_to_end: float | None = None
    step_time_s_p5: float | None = None
    step_time_s_p95: float | None = None
    drift_fraction: float | None = None
    data_wait_fraction_max: float | None = None  # of the repeats
    efficiency_plain: float | None = None  # against the script with no launcher and no process group
    efficiency_plain_low: float | None = None
    efficiency_plain_high: float | None = None
    simulated: str | None = None  # in words, where nodes were agents on one machine
    note: str = ""
    differing: tuple[str, ...] = ()  # fields of the fingerprint that forbid the ratio
    allowed: str = ""  # what differs and may, in words

    @property
    def scale(self) -> Scale:
        """The shape."""
        return Scale(self.nodes, self.gpus_per_node)

    @property
    def is_plain(self) -> bool:
        """Whether it is the plain baseline, which is no rung of the ladder."""
        return self.variant == PLAIN_VARIANT


@dataclass(frozen=True)
class _Good:
    """A run whose figures count."""

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
        """The record's own figure where it is of this statistic."""
        own = self.throughput.statistic == statistic
        return self.throughput.samples_per_s if own else float(self.rates.of(statistic))

    def step_time_s(self, statistic: Statistic) -> float:
        own = self.throughput.statistic == statistic
        return self.timing.step_time_s if own else float(self.step_times.of(statistic))


@dataclass(frozen=True)
class _Group:
    """All repeats of one variant x mode x scale."""

    specs: tuple[RunSpec, ...]
    good: tuple[_Good, ...]
    failed: tuple[Record, ...]  # started and failed
    left_out: tuple[Record, ...]  # not started, on purpose
    may_differ: Collection[str]
    statistic: Statistic = MEDIAN_OF_BLOCKS

    @property
    def first(self) -> RunSpec:
        return self.specs[0]

    @property
    def all_differences(self) -> tuple[Difference, ...]:
        """Between its own repeats."""
        pairs = ((self.good[0].record, other.record) for other in self.good[1:])
        return tuple(dict.fromkeys(found for pair in pairs for found in all_differences(*pair)))

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Those between its own repeats that forbid a ratio."""
        return self.forbidden(self.all_differences)

    def forbidden(self, found: Sequence[Difference]) -> tuple[Difference, ...]:
        """What the user does not allow to differ."""
        return tuple(item for item in found if item.field not in self.may_differ)

    @property
    def needs_samples_per_time(self) -> bool:
        """Whether a median of blocks would hide slow steps: in one of the runs, or in all of them together."""
        told = {run.throughput.statistic for run in self.good}
        together = statistic_of([run.rates for run in self.good]) if self.good else MEDIAN_OF_BLOCKS
        return SAMPLES_PER_TIME in (*told, together)

    @property
    def samples_per_s(self) -> float:
        return _median([run.samples_per_s(self.statistic) for run in self.good])

    @property
    def step_time_s(self) -> float:
        return _median([run.step_time_s(self.statistic) for run in self.good])

    def throughput_draws(self) -> Draws:
        return _draws([run.rates for run in self.good], self.statistic, self._seed())

    def step_time_draws(self) -> Draws:
        return _draws([run.step_times for run in self.good], self.statistic, self._seed())

    def _seed(self) -> int:
        """One stream per group: the two sides of a ratio must be drawn independently."""
        return zlib.crc32(f"{self.first.variant}/{self.first.mode}/{self.first.scale}".encode())


def scale_points(
    runs: Sequence[RunSpec], records: Mapping[str, Record], may_differ: Collection[str] = ()
) -> tuple[ScalePoint, ...]:
    """One point per variant x mode x scale, sorted by mode, variant and scale as ``runs`` has them.

    records: by ``RunSpec.name``. A run without one has not been run.
    may_differ: fields of the fingerprint that the user allows to differ between both sides of a ratio.
    """
    groups = _with_one_statistic(_groups(runs, records, may_differ))
    return tuple(_point(group, _Baselines.of(group.first, groups)) for group in groups.values())


def _groups(
    runs: Sequence[RunSpec], records: Mapping[str, Record], may_differ: Collection[str]
) -> dict[tuple[str, str, Scale], _Group]:
    modes = list(dict.fromkeys(run.mode for run in runs))
    variants = list(dict.fromkeys(run.variant for run in runs))
    scales = list(dict.fromkeys(run.scale for run in runs))
    specs: dict[tuple[str, str, Scale], list[RunSpec]] = {}
    for run in runs:
        specs.setdefault((run.mode, run.variant, run.scale), []).append(run)
    order = sorted(specs, key=lambda key: (modes.index(key[0]), variants.index(key[1]), scales.index(key[2])))
    return {key: _group(specs[key], records, may_differ) for key in order}


def _group(specs: Sequence[RunSpec], records: Mapping[str, Record], may_differ: Collection[str]) -> _Group:
    there = [records[spec.name] for spec in specs if spec.name in records]
    good = tuple(
        _Good(record, record.throughput, record.timing)
        for record in there
        if record.status == "ok" and record.throughput and record.timing
    )
    bad = [record for record in there if all(record is not run.record for run in good)]
    return _Group(
        specs=tuple(specs),
        good=good,
        failed=tuple(record for record in bad if record.job is not None),
        left_out=tuple(record for record in bad if record.job is None),
        may_differ=may_differ,
    )


def _with_one_statistic(groups: dict[tuple[str, str, Scale], _Group]) -> dict[tuple[str, str, Scale], _Group]:
    """The same statistic for all scales of a mode and variant: samples / time where any of them needs it."""
    needed = {_series(group) for group in groups.values() if group.needs_samples_per_time}
    return {
        key: replace(group, statistic=SAMPLES_PER_TIME if _series(group) in needed else MEDIAN_OF_BLOCKS)
        for key, group in groups.items()
    }


def _series(group: _Group) -> tuple[str, str]:
    """What is compared with each other; the plain baseline belongs to the variant whose script it is."""
    return group.first.mode, REFERENCE_VARIANT if group.first.is_plain else group.first.variant


@dataclass(frozen=True)
class _Baselines:
    """What a group is compared with; None where the plan has none."""

    launched: _Group | None  # 1x1 of the same variant and mode: a process group of one
    plain: _Group | None  # the script alone

    @classmethod
    def of(cls, spec: RunSpec, groups: Mapping[tuple[str, str, Scale], _Group]) -> _Baselines:
        return cls(
            launched=groups.get((spec.mode, spec.variant, BASELINE)),
            plain=groups.get((spec.mode, PLAIN_VARIANT, BASELINE)),
        )


def _point(group: _Group, baselines: _Baselines) -> ScalePoint:
    spec, baseline = group.first, baselines.launched
    point = ScalePoint(
        variant=spec.variant,
        mode=spec.mode,
        stage=spec.stage,
        nodes=spec.nodes,
        gpus_per_node=spec.gpus_per_node,
        world_size=spec.world_size,
        batch_per_gpu=spec.batch_per_gpu,
        global_batch=spec.global_batch,
        repeats=len(group.good),
    )
    if group.good:
        point = _with_startup(_with_figures(point, group), group)
    if group.failed:
        return replace(point, status="failed", note=_failure_note(group))
    if not group.good:
        return replace(point, status="not run", note=_why_not_run(group))
    if spec.is_plain:
        return replace(point, status="ok", note=_joined(_no_plain_baseline(group), _notes(point, group)))
    point = _with_plain_ratio(point, group, baselines.plain)
    point = _with_differences(point, group, baseline)
    obstacle = _obstacle(group, baseline)
    if obstacle or baseline is None:
        return replace(point, status="not comparable", note=_joined(obstacle, _notes(point, group)))
    point = _with_ratios(point, group, baseline)
    status, excess = _judged(point, group, baseline)
    plain = _no_plain_ratio(group, baselines.plain) if group is baseline else ""
    return replace(point, status=status, note=_joined(excess, _notes(point, group), plain))


def _with_figures(point: ScalePoint, group: _Group) -> ScalePoint:
    """The figures that need no baseline."""
    rate = group.samples_per_s
    rate_low, rate_high = _interval(group.throughput_draws(), rate)
    timings = [run.timing for run in group.good]
    step = group.step_time_s
    step_low, step_high = _interval(group.step_time_draws(), step)
    batch = batch_per_gpu_seen(group.good[0].record)
    simulated = (run.record.world.simulated for run in group.good)
    return replace(
        point,
        batch_per_gpu=batch,
        global_batch=batch * point.world_size,
        samples_per_s=rate,
        samples_per_s_low=rate_low,
        samples_per_s_high=rate_high,
        step_time_s=step,
        step_time_s_low=step_low,
        step_time_s_high=step_high,
        data_wait_fraction=_known([timing.data_wait_fraction for timing in timings]),
        data_wait_fraction_max=max(
            (t.data_wait_fraction for t in timings if t.data_wait_fraction is not None), default=None
        ),
        exposed_comm_fraction=_median_of_known([t.exposed_comm_fraction for t in timings]),
        straggler_fraction=_known([timing.straggler_fraction for timing in timings]),
        statistic=group.statistic,
        samples_per_s_total=_median([run.throughput.samples_per_s_total for run in group.good]),
        samples_per_s_end_to_end=_median_of_known([run.throughput.samples_per_s_end_to_end for run in group.good]),
        step_time_s_p5=_median([timing.step_time_s_p5 for timing in timings]),
        step_time_s_p95=_median([timing.step_time_s_p95 for timing in timings]),
        drift_fraction=_median_of_known([timing.drift_fraction for timing in timings]),
        gpu_hours_per_million_samples=point.world_size * 1e6 / rate / 3600,
        simulated=next((words for words in simulated if words), None),
    )


def _with_startup(point: ScalePoint, group: _Group) -> ScalePoint:
    """The start-up and its parts, each the median over repeats."""
    startups = [startup for run in group.good if (startup := startup_of(run.record.ranks)) is not None]
    return replace(
        point,
        startup_s=_median_of_known([startup.total_s for startup in startups]),
        startup_spawn_s=_median_of_known([startup.spawn_s for startup in startups]),
        startup_import_torch_s=_median_of_known([startup.import_torch_s for startup in startups]),
        startup_process_group_s=_median_of_known([startup.process_group_s for startup in startups]),
        startup_script_s=_median_of_known([startup.script_s for startup in startups]),
        startup_first_step_s=_median_of_known([startup.first_step_s for startup in startups]),
        startup_compile_s=_median_of_known([startup.compile_s for startup in startups]),
    )


def _with_ratios(point: ScalePoint, group: _Group, baseline: _Group) -> ScalePoint:
    n = point.world_size
    if group is baseline:
        speedup, low, high = 1.0, 1.0, 1.0  # by definition, not by measurement
    else:
        speedup = group.samples_per_s / baseline.samples_per_s
        low, high = _interval(group.throughput_draws() / baseline.throughput_draws(), speedup)
    return replace(
        point,
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        efficiency=speedup / n,
        efficiency_low=low / n,
        efficiency_high=high / n,
    )


def _with_plain_ratio(point: ScalePoint, group: _Group, plain: _Group | None) -> ScalePoint:
    if plain is None or _no_plain_ratio(group, plain):
        return point
    if SAMPLES_PER_TIME in (group.statistic, plain.statistic):  # that of another variant may have needed it
        group, plain = (replace(side, statistic=SAMPLES_PER_TIME) for side in (group, plain))
    n, rate = point.world_size, group.samples_per_s / plain.samples_per_s
    low, high = _interval(group.throughput_draws() / plain.throughput_draws(), rate)
    return replace(point, efficiency_plain=rate / n, efficiency_plain_low=low / n, efficiency_plain_high=high / n)


def _no_plain_ratio(group: _Group, plain: _Group | None) -> str:
    """Why nothing is compared with the script alone; empty when it is, and when nobody asked for it."""
    if plain is None:
        return ""
    why = _no_plain_baseline(plain)
    if not why and plain.good:
        found = differences(plain.good[0].record, group.good[0].record, group.may_differ)
        why = f"not like for like: {'; '.join(found)}" if found else ""
    return f"no efficiency against the plain script: {why}" if why else ""


def _no_plain_baseline(plain: _Group) -> str:
    """Why these runs are no plain baseline; empty when they are."""
    if plain.failed:
        return _no_plain_run(plain.failed[0].failure)
    if not plain.good:
        return "it has not been run"
    if plain.differences:
        return f"its repeats differ in {_in_words(plain.differences)}"
    if any(run.record.world.backend is not None for run in plain.good):
        return "it makes a process group also without a launcher"
    return ""


def _no_plain_run(failure: Failure | None) -> str:
    if failure is None:
        return "it does not run without a launcher (no reason recorded)"
    if failure.verdict == STILL_RUNNING:
        return failure.why
    if failure.verdict in CUT_SHORT:
        return f"it was cut short ({failure.why})"
    return f"it does not run without a launcher ({failure.why})"


def _obstacle(group: _Group, baseline: _Group | None) -> str:
    """Why no ratio to the baseline may be formed; empty when it may."""
    spec = group.first
    if group.differences:
        return f"the repeats differ in {_in_words(group.differences)}"
    if group is baseline:
        return ""
    what = f"the {BASELINE} baseline of {spec.variant}, {spec.mode},"
    if baseline is None:
        return f"{what} is not in the plan"
    if baseline.failed:
        return f"{what} failed"
    if not baseline.good:
        return f"{what} has not been run"
    if baseline.differences:
        return f"{what} has repeats that differ in {_in_words(baseline.differences)}"
    found = group.forbidden(_differences_to(group, baseline))
    return f"not like for like: {_in_words(found)}" if found else ""


def _differences_to(group: _Group, baseline: _Group | None) -> tuple[Difference, ...]:
    """What differs between a group and its baseline; nothing where there is none."""
    if baseline is None or group is baseline or not baseline.good:
        return ()
    return all_differences(baseline.good[0].record, group.good[0].record)


def _with_differences(point: ScalePoint, group: _Group, baseline: _Group | None) -> ScalePoint:
    """Which fields forbid the ratio, and what differs with the user's leave."""
    own = baseline.all_differences if baseline else ()
    found = tuple(dict.fromkeys((*_differences_to(group, baseline), *group.all_differences, *own)))
    forbidden = group.forbidden(found)
    return replace(
        point,
        differing=tuple(dict.fromkeys(item.field for item in forbidden)),
        allowed=_in_words([item for item in found if item not in forbidden]),
    )


def _in_words(found: Sequence[Difference]) -> str:
    return "; ".join(item.in_words for item in found)


def _judged(point: ScalePoint, group: _Group, baseline: _Group) -> tuple[Status, str]:
    if point.efficiency is not None and point.efficiency > MOST_EFFICIENCY:
        return "check", _excess_note(point, baseline)
    return ("incomplete" if len(group.good) < len(group.specs) else "ok"), ""


def waits_longer(baseline: float | None, here: float | None) -> bool:
    """Whether the baseline waits for data so much more that it explains an efficiency above the ideal."""
    return (baseline or 0) - (here or 0) > TELLING_WAIT


def _excess_note(point: ScalePoint, baseline: _Group) -> str:
    excess = f"{100 * (point.efficiency or 0):.0f} %: more than the ideal; "
    base_wait, here = _known([run.timing.data_wait_fraction for run in baseline.good]), point.data_wait_fraction
    if waits_longer(base_wait, here):
        return (
            f"{excess}the baseline is slower than it should be: it waits for data "
            f"{100 * (base_wait or 0):.0f} % of the time, here {100 * (here or 0):.0f} %"
        )
    if point.mode == "strong":
        return f"{excess}the smaller batch per GPU may fit a cache, or the baseline is slower than it should be"
    return (
        f"{excess}the baseline is slower than it should be: no recorded field explains it, "
        f"so repeat {BASELINE} and look for other load on its node"
    )


def _known(values: Sequence[float | None]) -> float | None:
    """Median of those that were measured; None when none was."""
    measured = [value for value in values if value is not None]
    return _median(measured) if measured else None


def _other_batch(seen: int, spec: RunSpec, record: Record) -> str:
    """What to say of a batch that is not the planned one."""
    planned, loader = spec.batch_per_gpu, record.fingerprint.get("loader_batch")
    batch = loader or planned  # the loader's own is not known of every loader
    count, rest = divmod(seen, batch)
    used = f"a step of the script has {seen} samples per GPU, the plan says {planned}"
    if rest or count < 2:
        return f"{used}: is {{batch_per_gpu}} in workload.args?"
    advice = f'set workload.batch_per_gpu: {seen} and pass the loader\'s batch as "{{batch_per_gpu}} // {count}"'
    if loader:
        return f"{used}: it accumulates gradients over {count} batches of {batch}; {advice}"
    return (
        f"{used}: if it accumulates gradients over {count} batches of {batch}, {advice}; else, is {{batch_per_gpu}} in "
        "workload.args?"
    )


def _notes(point: ScalePoint, group: _Group) -> str:
    """What a reader should know beside the status."""
    spec, notes = group.first, [] if point.simulated is None else [point.simulated]
    notes += [f"allowed to differ: {point.allowed}"] if point.allowed else []
    sources = {run.throughput.source for run in group.good} - {STRONGEST}
    notes += [f"weaker evidence: {IN_WORDS[source]}" for source in sorted(sources)]
    notes += dict.fromkeys(remark.what for run in group.good for remark in run.record.remarks)
    if point.batch_per_gpu != spec.batch_per_gpu:
        notes.append(_other_batch(point.batch_per_gpu, spec, group.good[0].record))
    notes += _unsteady(point, group)
    if len(group.good) < len(group.specs):
        notes.append(f"{len(group.good)} of {len(group.specs)} repeats have been run")
    if len(group.good) == 1:
        blocks = len(group.good[0].throughput.blocks_samples_per_s)
        notes.append(
            "one repeat: the interval is that of its blocks alone"
            if blocks > 1
            else "one repeat of one block: there is no interval"
        )
    return "; ".join(notes)


def _unsteady(point: ScalePoint, group: _Group) -> list[str]:
    """What a median alone would hide."""
    notes = []
    drift = point.drift_fraction
    median, total = (replace(group, statistic=each).samples_per_s for each in (MEDIAN_OF_BLOCKS, SAMPLES_PER_TIME))
    gap = f"{100 * abs(total / median - 1):.1f} % {'below' if total < median else 'above'} the median of blocks"
    if group.statistic == SAMPLES_PER_TIME:
        why = f"{gap}: slow steps recur" if group.needs_samples_per_time else "as at the scales where slow steps recur"
        notes.append(f"the figures are samples / time, {why}")
    elif abs(total / median - 1) > TELLING_GAP:
        notes.append(f"samples / time is {total:,.0f} samples/s, {gap}: some blocks are far from the others")
    if drift is not None and abs(drift) > TELLING_GAP:
        how = f"{100 * abs(drift):.0f} % {'slower' if drift > 0 else 'faster'}"
        notes.append(f"the last third of the steps was {how} than the first")
    unstable = sum(run.timing.warmup_stable is False for run in group.good)
    if unstable:
        notes.append(f"the step times of {unstable} of {len(group.good)} repeats were not steady after the warm-up")
    return notes


def _failure_note(group: _Group) -> str:
    count = f"{len(group.failed)} of {len(group.specs)} repeats failed"
    reasons = dict.fromkeys(run.failure.verdict for run in group.failed if run.failure)
    figures = "; the figures are those of the good ones" if group.good else ""
    return f"{count}: {', '.join(reasons) or 'no reason recorded'}{figures}"


def _why_not_run(group: _Group) -> str:
    return "; ".join(dict.fromkeys(run.failure.why for run in group.left_out if run.failure))


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _draws(repeats: Sequence[PerBlock], statistic: Statistic, seed: int) -> Draws:
    """Bootstrap distribution, shape (RESAMPLES,), of the median over repeats of the statistic of their blocks."""
    generator = np.random.default_rng([SEED, seed])
    chosen = generator.integers(0, len(repeats), (RESAMPLES, len(repeats)))
    figures = np.empty(chosen.shape)
    for index, run in enumerate(repeats):
        here = chosen == index
        picks = generator.integers(0, len(run.over), (int(here.sum()), len(run.over)))
        figures[here] = run.of(statistic, picks)
    drawn: Draws = np.median(figures, axis=1)
    return drawn


def _interval(draws: Draws, estimate: float) -> tuple[float, float]:
    """95 % interval; it holds the estimate, which is the record's own median and not a draw."""
    low, high = np.quantile(draws, TAILS)
    return min(float(low), estimate), max(float(high), estimate)


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


def _median_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _median(known) if known else None
