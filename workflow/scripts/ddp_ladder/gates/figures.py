"""The table of figures: what each one is, how it is computed from the repeats, and how and where it is shown.

scaling.csv, every table of the report, its definitions and its sentences take their figures from here. A new figure is
a row of FIGURES, and a Key of gates/points; gates/scaling computes it if it is more than the median over repeats. That
needs the table, which is therefore not in report/.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from ddp_ladder.common import formats
from ddp_ladder.common.formats import factor, gigabytes, megabytes, milliseconds, percent, seconds, share, significant
from ddp_ladder.gates.interval import Estimate
from ddp_ladder.gates.points import Key, ScalePoint
from ddp_ladder.measuring.fingerprint import batch_per_gpu_seen, global_batch_seen
from ddp_ladder.measuring.owners import saving_fraction
from ddp_ladder.measuring.statistic import step_times
from ddp_ladder.measuring.timing import startup_of
from ddp_ladder.records.record import SAMPLES_PER_TIME, Record

Table = Literal["csv", "page", "terminal", "runs", "startup", "usage", "attribution", "cost"]
REPORT: tuple[Table, ...] = ("csv", "page")  # the table of scales
BESIDE_STEPS: tuple[Table, ...] = (*REPORT, "runs")  # the tables with step times
COST: tuple[Table, ...] = ("csv", "cost")
OF_CENTRE = "centre's h"  # in a heading, in place of their name
MEMORY: tuple[Table, ...] = ("csv", "runs", "usage")
OfRun = Callable[[Record], float | None]


@dataclass(frozen=True)
class Column:
    """One column of scaling.csv, of the tables of the report, or of both."""

    key: str  # its name in scaling.csv: a Key of ScalePoint's figures, or one of its facts
    heading: str = ""  # the figure's name if empty
    unit: str = ""  # of ``text``
    text: Callable[[Any], str] = formats.whole  # a value as it is shown
    tables: tuple[Table, ...] = ("csv",)
    interval_in: tuple[Table, ...] = ()  # where the 95 % interval is shown too
    marks: Mapping[Table, Callable[[ScalePoint], str]] = field(default_factory=dict)  # remarks beside the value
    of_run: OfRun | None = None  # of a scale it is the median over repeats, unless gates/scaling computes it

    def of(self, point: ScalePoint) -> Estimate | None:
        """Return the figure with its interval and doubts; None: not known, or no figure but a fact."""
        return point.of(cast(Key, self.key))

    def value(self, point: ScalePoint) -> Any:
        """Return the value of a figure, or a fact of the point."""
        estimate = self.of(point)
        return getattr(point, self.key, None) if estimate is None else estimate.value

    def shown(self, point: ScalePoint) -> str:
        return self.text(self.value(point))

    def interval(self, point: ScalePoint) -> str:
        """Return ``[83-87 %]``; empty if it has none."""
        return estimate.interval(self.text) if (estimate := self.of(point)) else ""

    def with_interval(self, point: ScalePoint) -> str:
        """Return ``85 % [83-87 %]``."""
        return f"{self.shown(point)} {self.interval(point)}".rstrip()

    def beside(self, point: ScalePoint, table: Table) -> tuple[str, str]:
        """Return the interval and the mark that a table shows beside the value; empty if there is none."""
        mark = self.marks[table](point) if table in self.marks else ""
        return self.interval(point) if table in self.interval_in else "", mark


@dataclass(frozen=True)
class Figure:
    """A figure, or several that belong together, with its definition."""

    name: str
    unit: str  # in scaling.csv
    definition: str
    columns: tuple[Column, ...]


def figure(name: str, unit: str, definition: str, *columns: Column) -> Figure:
    """Return a figure whose columns have its name unless they have a heading of their own."""
    headed = tuple(replace(column, heading=column.heading or name) for column in columns)
    return Figure(name, unit, definition, headed)


def _of(part: str, figure: str) -> OfRun:
    """Return the reader of a field of a part of the record; of a record without this part it gives None."""

    def of_run(run: Record) -> float | None:
        of_part = getattr(run, part)
        return None if of_part is None else getattr(of_part, figure)

    return of_run


def _of_steps(read: OfRun) -> OfRun:
    return lambda run: read(run) if run.timing else None


def _part(key: str, heading: str, *tables: Table) -> Column:
    """Return a column of the start-up, in seconds."""

    def of_run(run: Record) -> float | None:
        startup = startup_of(run.ranks)
        return startup[key] if startup else None

    return Column(key, heading, "s", seconds, ("csv", "startup", *tables), of_run=of_run)


def _mean_step_time(run: Record) -> float | None:
    return float(step_times(run.timing).of(SAMPLES_PER_TIME)) if run.timing else None


def _energy_j_per_sample(run: Record) -> float | None:
    energy_j = run.usage.gpu_energy_j if run.usage else None
    steps = {rank.steps for rank in run.ranks}
    if energy_j is None or run.timing is None or len(steps) != 1:
        return None
    samples = sum(rank.samples for rank in run.ranks) * run.timing.measured_steps / steps.pop()
    return energy_j / samples if samples else None


def shares_of_rates(point: ScalePoint) -> str:
    """Return ``41 % of its matrix rate, 30 % of its peak``; empty if neither is known."""
    of = ((point["fraction_of_matrix_rate"], "its matrix rate"), (point["fraction_of_peak"], "its peak"))
    return ", ".join(f"{share(value)} of {what}" for value, what in of if value is not None)


def _number(value: float | None) -> str:
    """Return a count, which as a median may be ``2.5``."""
    return formats.UNKNOWN if value is None else f"{value:g}"


def _statistic(point: ScalePoint) -> str:
    return point.statistic if point.statistic == SAMPLES_PER_TIME else ""


def _accumulated(point: ScalePoint) -> str:
    """Return ``x 4 accumulated``; empty if a step has one batch."""
    times = point.global_batch // max(1, point.batch_per_gpu * point.world_size)
    return f"x {times} accumulated" if times > 1 else ""


def _mean_step(point: ScalePoint) -> str:
    mean_s = point["step_time_s_mean"]
    return "" if mean_s is None or point.statistic == SAMPLES_PER_TIME else f"mean {milliseconds(mean_s)}"


def _against_plain(point: ScalePoint) -> str:
    fraction = point["efficiency_plain"]
    return "" if fraction is None else f"{percent(fraction)} vs plain"


FIGURES = (  # in the order of the definitions, and of the columns in every table
    figure(
        "scale", "1",
        "nodes x GPUs per node; n is their product, the number of ranks. "
        "Stage 1 is the first scale of the ladder, b below; stage 2 one node, stage 3 several nodes.",
        Column("stage"),
        Column("nodes"),
        Column("gpus_per_node"),
        Column("world_size", "GPUs", tables=(*REPORT, "terminal")),
    ),
    figure(
        "mode", "samples",
        "weak: the batch per GPU is constant and the global batch grows with n; strong: the global batch is constant. "
        "The global batch is that of an optimizer step; with workload.global_batch, a step accumulates several batches "
        "per GPU.",
        Column("mode"),
        Column(
            "batch_per_gpu", "batch per GPU", tables=BESIDE_STEPS, of_run=_of_steps(batch_per_gpu_seen),
            marks={"page": _accumulated},
        ),
        Column("global_batch", "global batch", tables=BESIDE_STEPS, of_run=_of_steps(global_batch_seen)),
    ),
    figure(
        "variant", "1",
        "a named set of overrides of workload, network or launcher; "
        "repeats counts the good runs from which the figures are made, jobs those that made them. Intervals of one job "
        "hold what differs between its repeats, on its nodes; those of several jobs also what differs between these.",
        Column("variant"),
        Column("repeats", "repeats", tables=REPORT),
        Column("jobs"),
    ),
    figure(
        "steps measured", "1",
        "optimizer steps of a run without its warm-up.",
        Column("measured_steps", tables=("runs",), of_run=_of("timing", "measured_steps")),
    ),
    figure(
        "samples/s", "1/s",
        "X(n): training samples that all ranks really drew per second, without the sampler's padding. Median over "
        "repeats of the median over blocks; if slow steps recur, which such a median hides, all measured samples / all "
        "measured time, at every scale: the figures are then marked samples / time.",
        Column(
            "samples_per_s", text=significant, tables=(*REPORT, "terminal", "runs"), interval_in=REPORT,
            marks={"page": _statistic}, of_run=_of("throughput", "samples_per_s"),
        ),
        Column("statistic"),
    ),
    figure(
        "tokens/s", "1; 1/s; 1/s",
        "samples/s x tokens per sample, and that / n: workload.tokens_per_sample, else the length of input_ids if all "
        "batches have the same, padding included.",
        Column("tokens_per_sample"),
        Column("tokens_per_s", text=significant, tables=(*REPORT, "terminal")),
        Column("tokens_per_s_per_gpu", "tokens/s per GPU", text=significant, tables=(*REPORT, "terminal")),
    ),
    figure(
        "total, end to end", "1/s",
        "samples / time of all measured steps; and of everything after the first step, with validation, checkpoints, "
        "and clean-up. Both are in scaling.csv; the first is noted if it is the figure or over 5 % off the median.",
        Column("samples_per_s_total", text=significant, of_run=_of("throughput", "samples_per_s_total")),
        Column("samples_per_s_end_to_end", of_run=_of("throughput", "samples_per_s_end_to_end")),
    ),
    figure(
        "speed-up", "1",
        "X(n) / X(b), of the same variant and mode. b is the first scale of the ladder: the same script in a process "
        "group.",
        Column("speedup", text=factor, tables=(*REPORT, "terminal"), interval_in=("csv", "page")),
    ),
    figure(
        "efficiency", "1 (shown in %)",
        "X(n) / X(b) / (n / n of b). Given only if every field marked = below is equal at both scales.",
        Column(
            "efficiency", text=percent, tables=(*REPORT, "terminal"), interval_in=(*REPORT, "terminal"),
            marks={"page": _against_plain},
        ),
    ),
    figure(
        "against plain", "1 (shown in %)",
        "X(n) / (n X(plain)), with X(plain) of the script on one GPU with no launcher and no process group; on one "
        "GPU, the difference to 100 % is the cost of DDP.",
        Column("efficiency_plain", text=percent, interval_in=("csv",)),
    ),
    figure(
        "step time", "s (shown in ms)",
        "median over blocks of (the slowest rank's block time / steps in the block); all time / all steps if "
        "samples/s is samples / time. Mean step: all time / all steps, the median over repeats.",
        Column(
            "step_time_s", unit="ms", text=milliseconds, tables=(*REPORT, "runs"), interval_in=("csv", "page"),
            marks={"page": _mean_step}, of_run=_of("timing", "step_time_s"),
        ),
        Column("step_time_s_mean", "mean step", "ms", milliseconds, of_run=_mean_step_time),
    ),
    figure(
        "p5, p95, drift", "s; 1",
        "percentiles of single steps, each that of its slowest rank; step time in the last third of the blocks / in "
        "the first, minus 1. In scaling.csv; a drift over 5 % is noted.",
        Column("step_time_s_p5", of_run=_of("timing", "step_time_s_p5")),
        Column("step_time_s_p95", of_run=_of("timing", "step_time_s_p95")),
        Column("drift_fraction", of_run=_of("timing", "drift_fraction")),
    ),
    figure(
        "data wait", "1 (shown in %)",
        "time spent waiting for the data loader / step time, over all ranks.",
        Column(
            "data_wait_fraction", text=share, tables=(*REPORT, "runs"), of_run=_of("timing", "data_wait_fraction")
        ),
    ),
    figure(
        "exposed comm.", "1 (shown in %)",
        "communication that the backward pass did not hide / step time, on the rank with the longest own work in each "
        "step: the others also wait for that rank, which is imbalance. DDP measures the exchange of gradients, the "
        "instrument all other collectives. Without DDP, and "
        "with ZeRO, if measure.profile_steps is set: the share of rank 0's traced steps in which NCCL or Gloo worked, "
        "and no computation did.",
        Column(
            "exposed_comm_fraction", text=share, tables=(*REPORT, "runs"), of_run=_of("timing", "exposed_comm_fraction")
        ),
    ),
    figure(
        "parts of a step", "s (shown in ms)",
        "what the time of a step is for; they add up to it. Compute: DDP's forward and backward pass, on the typical "
        "rank. Exposed communication: what a step takes longer than the own work of its slowest rank. Data wait: of "
        "the typical rank, and what loaders that are slow on most ranks cost. Imbalance: what the slowest rank's own "
        "work in each step takes longer than the typical rank's. Rest: optimizer, copies, Python, and every part that "
        "is empty because DDP timed no steps, or too few.",
        Column("compute_s", "compute", "ms", milliseconds, ("csv", "attribution")),
        Column("exposed_comm_s", "exposed comm.", "ms", milliseconds, ("csv", "attribution")),
        Column("data_wait_s", "data wait", "ms", milliseconds, ("csv", "attribution")),
        Column("imbalance_s", "imbalance", "ms", milliseconds, ("csv", "attribution")),
        Column("rest_s", "rest", "ms", milliseconds, ("csv", "attribution")),
    ),
    figure(
        "start-up", "s",
        "from the launcher's start to the end of the first step, on the slowest rank; not part of the throughput. Of "
        "the repeat with the median start-up. Parts of it, which add up: spawn, until Python runs in it; import "
        "torch; process group, its initialisation with the wait for other ranks; script, the rest: other imports, "
        "data, model; first step, from the request for its first batch. torch.compile, of the whole run, is contained "
        "in the others, mostly in the first step.",
        _part("startup_spawn_s", "spawn"),
        _part("startup_import_torch_s", "import torch"),
        _part("startup_process_group_s", "process group"),
        _part("startup_script_s", "script"),
        _part("startup_first_step_s", "first step"),
        _part("startup_s", "", "page", "runs"),
        _part("startup_compile_s", "torch.compile"),
    ),
    figure(
        "saves", "1; s; bytes (shown in GB); 1 (shown in %)",
        "torch.save, and save and async_save of torch.distributed.checkpoint. Number and seconds: of the rank that was "
        "in them for longest; async_save until it returns, not what it writes beside the training. Saved: by all "
        "ranks, empty if that is not known of one save. Saving: share of the time after the start-up that was spent in "
        "saves, or waiting for a rank that saved.",
        Column("saves", text=_number, tables=("csv", "startup"), of_run=_of("saves", "count")),
        Column("saves_s", "in saves", "s", seconds, ("csv", "startup"), of_run=_of("saves", "seconds")),
        Column("saved_bytes", "saved", "GB", gigabytes, ("csv", "startup"), of_run=_of("saves", "bytes")),
        Column(
            "saving_fraction", "saving", text=share, tables=("csv", "startup"),
            of_run=lambda run: saving_fraction(run.owners_s),
        ),
    ),
    figure(
        "GPU h per million samples", "h",
        "n x 1,000,000 / X(n) / 3600. The hours of the centre (hours in cluster.yaml): GPU hours, or node hours, times "
        "their price.",
        Column("gpu_hours_per_million_samples", text=significant, tables=(*REPORT, "cost")),
        Column("centre_hours_per_million_samples", f"{OF_CENTRE} per million samples", "", significant, COST),
    ),
    figure(
        "to solution", "h; h; h; the centre's h; kWh; kg",
        "time of the training steps, hours and energy of all GPUs for the whole training: report.samples, "
        "report.epochs times the data set, report.tokens / tokens per sample, or report.steps of the scale's own "
        "global batch. CO2: that energy x carbon.grams_co2_per_kwh of cluster.yaml. Wall time adds the "
        "start-up, and validation and checkpoints in the proportion of the runs. By samples, epochs or tokens it is "
        "assumed that every scale needs as many samples, which large global batches may not reach.",
        Column("hours_to_solution", "time to solution", "h", significant, COST, interval_in=COST),
        Column("wall_hours_to_solution", "wall time to solution", "h", significant, COST),
        Column("gpu_hours_to_solution", "GPU h to solution", "", significant, COST),
        Column("centre_hours_to_solution", f"{OF_CENTRE} to solution", "", significant, COST),
        Column("energy_kwh_to_solution", "GPU energy to solution", "kWh", significant, COST),
        Column("carbon_kg_to_solution", "CO2 of it", "kg", significant, COST),
    ),
    figure(
        "efficiency by total time", "1 (shown in %)",
        "p(b) T(b) / (p(N) T(N)): p GPUs, T the wall time of a whole run with start-up, validation and end. "
        "Where the runs of two scales train different numbers of samples, T is per sample.",
        Column("efficiency_total_time", text=formats.tenths_of_percent, tables=COST, interval_in=COST),
    ),
    figure(
        "wall time", "s",
        "of a run, from before its processes start to the end of the last one.",
        Column("wall_s", "", "s", significant, ("csv", "runs", "cost"), of_run=_of("timing", "wall_s")),
    ),
    figure(
        "GPU busy", "1 (shown in %)",
        "share of the measured time in which any kernel ran on a GPU, mean of all GPUs. NVML's utilization.gpu of a "
        "sample covers the last 1/6 s to 1 s before it, by GPU model, so short pauses between samples can be missed; "
        "median over repeats, as all that follow. How much of the GPU the kernels used shows in its power.",
        Column("gpu_busy_fraction", text=share, tables=("csv", "usage"), of_run=_of("usage", "gpu_busy_fraction")),
    ),
    figure(
        "GPU power", "W",
        "of one GPU in the measured time, mean of all GPUs, as NVML measures it.",
        Column("gpu_power_w", "", "W", significant, ("csv", "usage"), of_run=_of("usage", "gpu_power_w")),
    ),
    figure(
        "CPU", "1 (shown in %)",
        "share of the measured time in which the CPUs that the run may use were busy, mean of all its nodes.",
        Column("cpu_fraction", text=share, tables=("csv", "usage"), of_run=_of("usage", "cpu_fraction")),
    ),
    figure(
        "peak memory", "bytes (shown in MB)",
        "of the run's rank with the most: of its device if that has a memory of its own (allocated by torch), else of "
        "the host (resident, without its loader's workers).",
        Column("peak_memory_bytes", "", "MB per rank", megabytes, MEMORY, of_run=_of("memory", "peak_bytes")),
    ),
    figure(
        "memory headroom", "1 (shown in %)",
        "1 - that peak / what this rank can have: on a GPU what torch's allocator has and can still get, else an equal "
        "share of the least of the node's memory, its control group's limit and what the job asked for "
        "(node.memory_mb).",
        Column("memory_headroom_fraction", text=share, tables=MEMORY, of_run=_of("memory", "headroom_fraction")),
    ),
    figure(
        "GPU energy", "J per sample",
        "energy of all GPUs in the measured time, from NVML's counter or the integral of its power, / samples consumed "
        "in it. Without that of CPUs, memory, network and cooling.",
        Column("energy_j_per_sample", "", "J per sample", significant, ("csv", "usage"), of_run=_energy_j_per_sample),
    ),
    figure(
        "TFLOP/s", "1 (FLOP); 1e12/s; 1; 1",
        "FLOPs of the model per sample (matrix products and convolutions, forward and backward, nothing that is "
        "recomputed; causal attention in full) x X(n) / n. The FLOPs are counted at b. Of the matrix rate: / the rate "
        "at which the preflight of this scale multiplied large matrices in the same precision, median over ranks. Of "
        "the peak: / that of the GPU's data sheet. Parameters: the trained ones, if no rank had a part of them alone.",
        Column("model_flops_per_sample", of_run=_of("flops", "of_model")),
        Column(
            "tflop_per_s_per_gpu", "TFLOP/s per GPU", text=significant, tables=REPORT,
            marks={"page": shares_of_rates},
        ),
        Column("fraction_of_matrix_rate", "of the matrix rate", text=share),
        Column("fraction_of_peak", "of the peak", text=share),
        Column("parameters"),
        Column("flops_precision"),
        Column("flops_not_counted"),
    ),
    figure(
        "status", "",
        "ok; check: efficiency over 105 %; incomplete: repeats are missing; not comparable: a "
        "field differs from the baseline; failed: a repeat failed; not run.",
        Column("status"),
        Column("note"),
    ),
)  # fmt: skip


def columns(table: Table) -> tuple[Column, ...]:
    """Return the columns of a table, in order."""
    return tuple(column for figure in FIGURES for column in figure.columns if table in column.tables)


def figures_in(*tables: Table) -> tuple[Figure, ...]:
    """Return the figures that are shown in any of these tables."""
    return tuple(figure for figure in FIGURES if any({*column.tables} & {*tables} for column in figure.columns))


SCALING_CSV = (
    "variant mode stage nodes gpus_per_node world_size batch_per_gpu global_batch repeats samples_per_s "
    "samples_per_s_low samples_per_s_high speedup efficiency efficiency_low efficiency_high step_time_s "
    "data_wait_fraction exposed_comm_fraction gpu_hours_per_million_samples status speedup_low speedup_high "
    "step_time_s_low step_time_s_high startup_s startup_spawn_s startup_import_torch_s startup_process_group_s "
    "startup_script_s startup_first_step_s startup_compile_s samples_per_s_total samples_per_s_end_to_end "
    "step_time_s_p5 step_time_s_p95 step_time_s_mean drift_fraction statistic efficiency_plain efficiency_plain_low "
    "efficiency_plain_high peak_memory_bytes memory_headroom_fraction gpu_busy_fraction gpu_power_w cpu_fraction "
    "energy_j_per_sample compute_s exposed_comm_s data_wait_s imbalance_s rest_s efficiency_total_time "
    "efficiency_total_time_low efficiency_total_time_high wall_s hours_to_solution hours_to_solution_low "
    "hours_to_solution_high wall_hours_to_solution gpu_hours_to_solution energy_kwh_to_solution "
    "model_flops_per_sample tflop_per_s_per_gpu fraction_of_matrix_rate fraction_of_peak flops_precision "
    "flops_not_counted jobs saves saves_s saved_bytes saving_fraction tokens_per_sample tokens_per_s "
    "tokens_per_s_per_gpu centre_hours_per_million_samples centre_hours_to_solution carbon_kg_to_solution parameters "
    "note"
).split()
"""The columns of scaling.csv in their order. Programs may rely on it: new ones come last."""


def csv_row(point: ScalePoint) -> dict[str, Any]:
    """Return the row of scaling.csv by column."""
    row = {}
    for column in columns("csv"):
        row[column.key], estimate = column.value(point), column.of(point)
        if column.interval_in:
            row |= {f"{column.key}_{end}": estimate and getattr(estimate, end) for end in ("low", "high")}
    return row


COLUMN = {column.key: column for column in columns("csv")}
SAMPLES_PER_S, STEP_TIME, EFFICIENCY = COLUMN["samples_per_s"], COLUMN["step_time_s"], COLUMN["efficiency"]
SPEEDUP, AGAINST_PLAIN = COLUMN["speedup"], COLUMN["efficiency_plain"]
TOKENS_PER_S, TOKENS_PER_S_PER_GPU = COLUMN["tokens_per_s"], COLUMN["tokens_per_s_per_gpu"]
EXPOSED_COMM, TFLOP_PER_S = COLUMN["exposed_comm_fraction"], COLUMN["tflop_per_s_per_gpu"]
PEAK_MEMORY, HEADROOM = COLUMN["peak_memory_bytes"], COLUMN["memory_headroom_fraction"]
GPU_HOURS_TO_SOLUTION = COLUMN["gpu_hours_to_solution"]
