"""The repeats of a variant x mode x scale, and the point they make: its figures, and what its runs used. Pure.

The parts of a step are means over the repeats and add up to it. Each run's are in its record; see docs/attribution.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

from ddp_ladder.common.findings import Finding
from ddp_ladder.common.formats import capitalised, grouped, in_short, rank_numbers
from ddp_ladder.common.model import IN_A_MODEL
from ddp_ladder.gates.interval import Estimate, LogMean, Variance
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
from ddp_ladder.nodes.critical_rank import Exchange, Kind, against_waits
from ddp_ladder.nodes.findings import RunUse, find_other_processes
from ddp_ladder.nodes.usage import RankUse, Usage
from ddp_ladder.plan.plan import Hours, RunSpec, first_scale
from ddp_ladder.platform.accelerators import is_gpu
from ddp_ladder.records.raw_models import Flops, Witnessed
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
from ddp_ladder.settings.terms import ONE_GPU, PLAIN_VARIANT, REFERENCE_VARIANT, Scale

Status = Literal["ok", "check", "incomplete", "not comparable", "failed", "not run"]
WITNESSED = "witnessed"  # a source


Key = Literal[
    "samples_per_s", "speedup", "efficiency", "step_time_s", "data_wait_fraction", "exposed_comm_fraction",
    "gpu_hours_per_million_samples", "startup_s", "startup_spawn_s", "startup_import_torch_s",
    "startup_process_group_s", "startup_script_s", "startup_first_step_s", "startup_compile_s", "samples_per_s_total",
    "samples_per_s_end_to_end", "step_time_s_p5", "step_time_s_p95", "step_time_s_mean", "drift_fraction",
    "efficiency_plain", "peak_memory_bytes", "memory_headroom_fraction", "gpu_busy_fraction", "gpu_power_w",
    "cpu_fraction", "energy_j_per_sample", "compute_s", "exposed_comm_s", "data_wait_s", "imbalance_s", "rest_s",
    "efficiency_total_time", "wall_s", "hours_to_solution", "wall_hours_to_solution", "gpu_hours_to_solution",
    "energy_kwh_to_solution", "model_flops_per_sample", "tflop_per_s_per_gpu", "fraction_of_matrix_rate",
    "fraction_of_peak", "saves", "saves_s", "saved_bytes", "saving_fraction", "tokens_per_s", "tokens_per_s_per_gpu",
    "centre_hours_per_million_samples", "centre_hours_to_solution", "carbon_kg_to_solution",
]  # fmt: skip
"""The figures of a scale; what each is stands in gates/figures."""
Figures = Mapping[Key, Estimate | float | None]


@dataclass(frozen=True)
class ScalePoint:
    """A variant x mode x scale: what was planned, its figures, and what is said of them. None: not known."""

    __pydantic_config__: ClassVar = IN_A_MODEL
    variant: str
    mode: str
    stage: str
    nodes: int
    gpus_per_node: int
    world_size: int
    batch_per_gpu: int
    global_batch: int
    repeats: int  # only successful ones, from which the figures are made
    figures: Mapping[Key, Estimate] = field(default_factory=dict)  # those that are known
    status: Status = "not run"
    statistic: Statistic = MEDIAN_OF_BLOCKS  # of rate and step time, and thus of all ratios
    jobs: int = 0  # that made the repeats
    tokens_per_sample: int | None = None
    parameters: int | None = None  # trained ones, the same in all runs; None: sharded, or not seen
    flops_precision: str = ""
    flops_not_counted: str = ""  # why
    note: str = ""
    simulated: str | None = None  # the note if nodes were agents on one machine
    differing: tuple[str, ...] = ()  # fields of the fingerprint that forbid the ratio
    allowed: str = ""  # the allowed differences, in words
    findings: tuple[Finding, ...] = ()  # on what its runs used
    step: StepFacts | None = None  # what else is known of its steps
    baseline: str = str(ONE_GPU)  # the scale of speed-up and efficiency: the first of the ladder
    flops: Flops | None = None
    witness: Witnessed | None = None  # of its first run
    gpu: str | None = None  # models of all ranks
    owners_s: tuple[tuple[str, float], ...] = ()  # where the seconds of one run went: measuring/owners

    def __getitem__(self, key: Key) -> float | None:
        """Return the value of a figure alone; None: not known."""
        return self.figures[key].value if key in self.figures else None

    def of(self, key: Key) -> Estimate | None:
        """Return a figure with its interval and doubts; None: not known."""
        return self.figures.get(key)

    def having(self, figures: Figures, **facts: Any) -> ScalePoint:
        """Return the point with these figures and facts. A number has neither interval nor doubts; None: not known."""
        told = {key: figure for key, figure in {**self.figures, **figures}.items() if figure is not None}
        every = {key: figure if isinstance(figure, Estimate) else Estimate(figure) for key, figure in told.items()}
        return replace(self, figures=every, **facts)

    @property
    def rate(self) -> Estimate | None:
        """Return its samples/s."""
        return self.of("samples_per_s")

    @property
    def witness_in_words(self) -> str:
        """Return whether its samples are witnessed, as a sentence; empty if it can have no witness."""
        if self.witness is None:
            return ""
        doubted = self.rate and next((doubt for doubt in self.rate.doubts if doubt.place), None)
        return f"{capitalised(doubted.measured)}." if self.witness.is_counted and doubted else self.witness.in_words

    @property
    def scale(self) -> Scale:
        return Scale(self.nodes, self.gpus_per_node)

    def cost(self, hours: float) -> Hours:
        return Hours.held(hours, self.nodes, self.world_size)

    @property
    def against_waits(self) -> str:
        """Return what to do about its wait for data."""
        return against_waits(self.step.begin_wait_fraction if self.step else None)

    @property
    def cost_per_million(self) -> Hours:
        return self.cost((self["gpu_hours_per_million_samples"] or 0.0) / self.world_size)

    @property
    def is_plain(self) -> bool:
        """Return True for the plain baseline, which is not a scale of the ladder."""
        return self.variant == PLAIN_VARIANT

    @property
    def is_baseline(self) -> bool:
        return str(self.scale) == self.baseline

    @property
    def baseline_in_words(self) -> str:
        """Return ``one GPU``, or the scale if the ladder starts at a larger one."""
        return "one GPU" if self.baseline == str(ONE_GPU) else self.baseline

    def place(self, several_series: bool) -> str:
        """Return ``1x4 weak gloo``; mode and variant only if there are several."""
        return f"{self.scale} {self.mode} {self.variant}" if several_series else str(self.scale)


@dataclass(frozen=True)
class StepFacts:
    """What else is known of a scale's steps. Times in seconds; None: not known."""

    __pydantic_config__: ClassVar = IN_A_MODEL
    own_max_s: float | None = None  # own work of the critical rank of each step
    comm_s: float | None = None  # this and the next of the critical rank, which waits for no other
    overlap_s: float | None = None
    imbalance_kind: Kind | None = None  # persistent only if it is the same place in every repeat
    slowest: str | None = None  # that place: ``rank 3 on node2``
    slow_node: str | None = None  # its node, if several repeats show it, and if other nodes have ranks too
    imbalance_data_s: float | None = None  # this and the next: parts of the imbalance
    imbalance_compute_s: float | None = None
    timed_steps: int | None = None  # the fewest that DDP timed on all ranks of a run
    gradient_bytes: int | None = None
    buckets: int | None = None
    comm_hook: str | None = None
    exchanges: int | None = None  # of the gradients, in a step
    others: tuple[Exchange, ...] = ()  # collectives that DDP does not time, of the first repeat
    slow_settings: tuple[str, ...] = ()  # that may slow every step; what they do is a remark of each run
    on_gpu: bool = False
    parameter_dtype: str | None = None
    workers: int | None = None  # of the loader of a rank
    begin_wait_fraction: float | None = None  # the part of the waits for them that is in the first step of a pass
    backend: str | None = None
    memory_fraction: float | None = None  # of the fullest GPU


LEAST_SHARE = 0.5  # of the repeats: what fewer of them show was chance
EVERY_REPEAT = ("slow node",)  # to leave out a node that is slow in some repeats only would not help
ONCE = "see whether further repeats show the same (repeats in config.yaml) before the node is left out: this is one"


def findings_of_repeats(records: Sequence[Record], alone_cores: float | None = None) -> tuple[Finding, ...]:
    """Return the findings that at least half of the repeats of a scale have; a slow node must be so in all of them.

    alone_cores: that a rank used at the baseline's scale; None at that scale, or if it is not known.
    """
    monitored = [_findings(record, record.usage, alone_cores) for record in records if record.usage is not None]
    alike: dict[Hashable, list[Finding]] = {}
    for findings in monitored:
        numbers: Counter[str] = Counter()
        for finding in findings:
            numbers[finding.kind] += 1
            which = finding.place if finding.kind in EVERY_REPEAT else numbers[finding.kind]
            alike.setdefault((finding.kind, which), []).append(finding)
    has_other_nodes = records[0].spec.nodes > 1
    return tuple(
        _of_scale(repeats, len(monitored), has_other_nodes)
        for repeats in alike.values()
        if len(repeats) >= (1.0 if repeats[0].kind in EVERY_REPEAT else LEAST_SHARE) * len(monitored)
    )


def _of_scale(repeats: Sequence[Finding], monitored: int, has_other_nodes: bool) -> Finding:
    """Return the finding of the first repeat, with the number of repeats that have it if not all do."""
    first = repeats[0]
    if len(repeats) < monitored:
        return first.replace(measured=f"{first.measured} (in {len(repeats)} of {monitored} repeats)")
    if monitored > 1 or first.kind not in EVERY_REPEAT:
        return first
    return first.replace(uncertain=True, next=ONCE if has_other_nodes else first.next)


def _findings(record: Record, usage: Usage, alone_cores: float | None) -> tuple[Finding, ...]:
    """Return the findings of a run, with the one that needs the baseline: other processes on CPUs that are not full."""
    timing, spec = record.timing, record.spec
    if alone_cores is None or timing is None or any(finding.kind == "other processes" for finding in usage.findings):
        return usage.findings
    per_node = spec.gpus_per_node
    run = RunUse(
        nodes=tuple(node for node in usage.nodes if node.is_enough),
        ranks=tuple(RankUse(rank, rank % per_node, rank // per_node) for rank in range(spec.world_size)),
        simulated=record.world.simulated is not None,
        on_gpus=is_gpu(spec.device),
        data_wait_fraction=timing.data_wait_fraction,
        alone_cores=alone_cores,
    )
    return (*find_other_processes(run), *usage.findings)


def cores_of_a_rank(records: Sequence[Record]) -> float | None:
    """Return how many cores a rank used in the measured training, the mean of the repeats; None if it is not known."""
    nodes = [node for record in records if record.usage for node in record.usage.nodes if node.is_enough]
    cores = [node.training_cpu_cores for node in nodes if node.training_cpu_cores is not None]
    return sum(cores) / len(cores) / records[0].spec.gpus_per_node if cores and len(cores) == len(nodes) else None


def findings_across_scales(points: Sequence[ScalePoint]) -> list[tuple[Finding, list[ScalePoint]]]:
    """Return each finding once, with all points that have it, in the words of the largest scale.

    What all nodes of several scales have is one finding, and so is what the same node or GPU has at several scales.
    """
    alike: dict[Hashable, list[tuple[Finding, ScalePoint]]] = {}
    for point in points:
        numbers: Counter[Hashable] = Counter()
        for finding in point.findings:
            place = (finding.kind, finding.place)
            numbers[place] += 1
            alike.setdefault((place, numbers[place]), []).append((finding, point))
    several_series = len({(point.mode, point.variant) for point in points if not point.is_plain}) > 1
    return [(_of_largest(scales, several_series), [point for _, point in scales]) for scales in alike.values()]


def other_processes(*points: ScalePoint | None) -> Finding | None:
    """Return the finding on other processes, with its place, of the first point that has one.

    Where it is, no other cause can be told.
    """
    for point in filter(None, points):
        for finding in point.findings:
            if finding.kind == "other processes":
                return finding.replace(place="", measured=f"at {point.scale}, {finding.in_words}")
    return None


def _of_largest(scales: Sequence[tuple[Finding, ScalePoint]], several_series: bool) -> Finding:
    """Return the finding of the largest scale. If several scales have it, it says of which its figures are."""
    finding, point = max(scales, key=lambda scale: (scale[1].world_size, scale[1].nodes))
    if len(scales) == 1:
        return finding
    return finding.replace(measured=f"{finding.measured} (as measured at {point.place(several_series)})")


# --- Groups of repeats, and the parts of their step.


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
