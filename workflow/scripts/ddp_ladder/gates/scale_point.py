"""One point of the scaling: the figures of a variant x mode x scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_ladder.common.model import IN_A_MODEL
from ddp_ladder.gates.interval import LogMean
from ddp_ladder.gates.step_facts import StepFacts
from ddp_ladder.gates.usage_findings import ScaleFinding
from ddp_ladder.records.record import MEDIAN_OF_BLOCKS, Statistic
from ddp_ladder.settings.terms import ONE_GPU, PLAIN_VARIANT, Scale

Status = Literal["ok", "check", "incomplete", "not comparable", "failed", "not run"]


@dataclass(frozen=True)
class ScalePoint:
    """One row of scaling.csv: its columns in their order, defined in gates/figures, and after ``note`` what it lacks.

    None: not known.
    """

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
    samples_per_s_total: float | None = None
    samples_per_s_end_to_end: float | None = None
    step_time_s_p5: float | None = None
    step_time_s_p95: float | None = None
    step_time_s_mean: float | None = None
    drift_fraction: float | None = None
    statistic: Statistic = MEDIAN_OF_BLOCKS  # of rate and step time, and thus of all ratios
    efficiency_plain: float | None = None  # against the script with no launcher and no process group
    efficiency_plain_low: float | None = None
    efficiency_plain_high: float | None = None
    peak_memory_bytes: float | None = None
    gpu_busy_fraction: float | None = None
    gpu_power_w: float | None = None
    cpu_fraction: float | None = None
    energy_j_per_sample: float | None = None
    compute_s: float | None = None  # parts of a step, which add up to it: gates/step_split
    exposed_comm_s: float | None = None
    data_wait_s: float | None = None
    imbalance_s: float | None = None
    rest_s: float | None = None
    global_efficiency: float | None = None  # factors of POP: gates/pop
    parallel_efficiency: float | None = None
    load_balance: float | None = None
    communication_efficiency: float | None = None
    computation_scaling: float | None = None
    node_baseline: str = ""  # the scale; empty if there is no ratio to it
    speedup_node: float | None = None
    speedup_node_low: float | None = None
    speedup_node_high: float | None = None
    efficiency_node: float | None = None
    efficiency_node_low: float | None = None
    efficiency_node_high: float | None = None
    smallest_baseline: str = ""
    speedup_smallest: float | None = None
    speedup_smallest_low: float | None = None
    speedup_smallest_high: float | None = None
    efficiency_smallest: float | None = None
    efficiency_smallest_low: float | None = None
    efficiency_smallest_high: float | None = None
    serial_fraction: float | None = None
    serial_fraction_low: float | None = None
    serial_fraction_high: float | None = None
    efficiency_total_time: float | None = None  # against smallest_baseline: gates/total_time
    efficiency_total_time_low: float | None = None
    efficiency_total_time_high: float | None = None
    wall_s: float | None = None
    hours_per_million_samples: float | None = None
    energy_kwh_per_million_samples: float | None = None
    hours_per_epoch: float | None = None
    gpu_hours_per_epoch: float | None = None
    energy_kwh_per_epoch: float | None = None
    hours_to_solution: float | None = None
    hours_to_solution_low: float | None = None
    hours_to_solution_high: float | None = None
    wall_hours_to_solution: float | None = None
    gpu_hours_to_solution: float | None = None
    energy_kwh_to_solution: float | None = None
    jobs: int = 0  # that made the repeats
    note: str = ""
    data_wait_fraction_max: float | None = None  # of the repeats
    simulated: str | None = None  # the note if nodes were agents on one machine
    differing: tuple[str, ...] = ()  # fields of the fingerprint that forbid the ratio
    allowed: str = ""  # the allowed differences, in words
    node_obstacle: str = ""  # why there is no ratio to one node
    smallest_obstacle: str = ""  # why a smaller scale is not the baseline: not comparable: precision, workers
    log_rate: LogMean | None = None  # the throughput with its uncertainty
    log_efficiency: LogMean | None = None  # None at the baseline, where it is 1 by definition
    unsteady: str = ""  # why the step times here or at the baseline are not those of a longer run, and what to set
    findings: tuple[ScaleFinding, ...] = ()  # on what its runs used
    step: StepFacts | None = None  # what else is known of its steps
    baseline: str = str(ONE_GPU)  # the scale of speed-up and efficiency: the first of the ladder
    unexplained: str = ""  # the remark on time in no step that may be training, of the first run that has one

    @property
    def scale(self) -> Scale:
        """Return nodes x GPUs per node."""
        return Scale(self.nodes, self.gpus_per_node)

    @property
    def is_plain(self) -> bool:
        """Return True for the plain baseline, which is not a scale of the ladder."""
        return self.variant == PLAIN_VARIANT

    @property
    def is_baseline(self) -> bool:
        """Return True for the scale that the efficiency relates to."""
        return str(self.scale) == self.baseline

    @property
    def baseline_in_words(self) -> str:
        """Return ``one GPU``, or the scale if the ladder starts at a larger one."""
        return "one GPU" if self.baseline == str(ONE_GPU) else self.baseline

    def place(self, several_series: bool) -> str:
        """Return ``1x4 weak gloo``; mode and variant only if there are several."""
        return f"{self.scale} {self.mode} {self.variant}" if several_series else str(self.scale)
