"""One point of the scaling: the figures of a variant x mode x scale, and the findings on what its runs used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from ddp_ladder.common.findings import Finding
from ddp_ladder.common.formats import capitalised
from ddp_ladder.common.model import IN_A_MODEL
from ddp_ladder.gates.interval import Estimate
from ddp_ladder.nodes.critical_rank import Exchange, Kind, against_waits
from ddp_ladder.nodes.findings import RunUse, find_other_processes
from ddp_ladder.nodes.usage import RankUse, Usage
from ddp_ladder.plan.plan import Hours
from ddp_ladder.platform.accelerators import is_gpu
from ddp_ladder.records.raw_models import Flops, Witnessed
from ddp_ladder.records.record import MEDIAN_OF_BLOCKS, Record, Statistic
from ddp_ladder.settings.terms import ONE_GPU, PLAIN_VARIANT, Scale

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
