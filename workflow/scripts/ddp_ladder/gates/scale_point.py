"""One point of the scaling: the figures of a variant x mode x scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_ladder.common.model import IN_A_MODEL
from ddp_ladder.records.record import MEDIAN_OF_BLOCKS, Statistic
from ddp_ladder.settings.terms import PLAIN_VARIANT, Scale

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
    drift_fraction: float | None = None
    statistic: Statistic = MEDIAN_OF_BLOCKS  # of rate and step time, and thus of all ratios
    efficiency_plain: float | None = None  # against the script with no launcher and no process group
    efficiency_plain_low: float | None = None
    efficiency_plain_high: float | None = None
    note: str = ""
    data_wait_fraction_max: float | None = None  # of the repeats
    simulated: str | None = None  # the note if nodes were agents on one machine
    differing: tuple[str, ...] = ()  # fields of the fingerprint that forbid the ratio
    allowed: str = ""  # the allowed differences, in words

    @property
    def scale(self) -> Scale:
        """Return nodes x GPUs per node."""
        return Scale(self.nodes, self.gpus_per_node)

    @property
    def is_plain(self) -> bool:
        """Return True for the plain baseline, which is not a scale of the ladder."""
        return self.variant == PLAIN_VARIANT

    def place(self, several_series: bool) -> str:
        """Return ``1x4 weak gloo``; mode and variant only if there are several."""
        return f"{self.scale} {self.mode} {self.variant}" if several_series else str(self.scale)
