"""The columns of scaling.csv, and the definition of each figure of the report."""

from __future__ import annotations

from dataclasses import dataclass

CSV_FIRST = (  # the columns that readers of scaling.csv may rely on, in this order
    "variant",
    "mode",
    "stage",
    "nodes",
    "gpus_per_node",
    "world_size",
    "batch_per_gpu",
    "global_batch",
    "repeats",
    "samples_per_s",
    "samples_per_s_low",
    "samples_per_s_high",
    "speedup",
    "efficiency",
    "efficiency_low",
    "efficiency_high",
    "step_time_s",
    "data_wait_fraction",
    "exposed_comm_fraction",
    "gpu_hours_per_million_samples",
    "status",
)
STARTUP_PARTS = (
    "startup_spawn_s",
    "startup_import_torch_s",
    "startup_process_group_s",
    "startup_script_s",
    "startup_first_step_s",
    "startup_compile_s",
)
CSV_MORE = (
    "speedup_low",
    "speedup_high",
    "step_time_s_low",
    "step_time_s_high",
    "straggler_fraction",
    "startup_s",
    *STARTUP_PARTS,
    "samples_per_s_total",
    "samples_per_s_end_to_end",
    "step_time_s_p5",
    "step_time_s_p95",
    "drift_fraction",
    "statistic",
    "efficiency_plain",
    "efficiency_plain_low",
    "efficiency_plain_high",
    "note",
)
CSV_COLUMNS = CSV_FIRST + CSV_MORE


@dataclass(frozen=True)
class Definition:
    """The definition of a figure. columns: those of scaling.csv."""

    name: str
    columns: tuple[str, ...]
    unit: str
    text: str


DEFINITIONS = (
    Definition(
        "scale",
        ("stage", "nodes", "gpus_per_node", "world_size"),
        "1",
        "nodes x GPUs per node; n is their product, the number of ranks. "
        "Stage 1 is one GPU, stage 2 one node, stage 3 several nodes.",
    ),
    Definition(
        "mode",
        ("mode", "batch_per_gpu", "global_batch"),
        "samples",
        "weak: the batch per GPU is constant and the global batch grows with n; strong: the global batch is constant.",
    ),
    Definition(
        "variant",
        ("variant", "repeats"),
        "1",
        "a named set of overrides of workload, network or launcher; "
        "repeats counts the good runs from which the figures are made.",
    ),
    Definition(
        "samples/s",
        ("samples_per_s", "samples_per_s_low", "samples_per_s_high", "statistic"),
        "1/s",
        "X(n): training samples that all ranks really drew per second, without the sampler's padding. Median over "
        "repeats of the median over blocks; if slow steps recur, which such a median hides, all measured samples / all "
        "measured time, at every scale: the figures are then marked samples / time.",
    ),
    Definition(
        "total, end to end",
        ("samples_per_s_total", "samples_per_s_end_to_end"),
        "1/s",
        "samples / time of all measured steps; and of everything after the first step, with validation, checkpoints, "
        "and clean-up. Both are in scaling.csv; the first is noted if it is the figure or over 5 % off the median.",
    ),
    Definition(
        "speed-up",
        ("speedup", "speedup_low", "speedup_high"),
        "1",
        "X(n) / X(1), with X(1) of the same variant and mode at 1x1: the same script in a process group of one.",
    ),
    Definition(
        "efficiency",
        ("efficiency", "efficiency_low", "efficiency_high"),
        "1 (shown in %)",
        "X(n) / (n X(1)), with the same X(1). Given only if every field marked = below is equal at both scales.",
    ),
    Definition(
        "against plain",
        ("efficiency_plain", "efficiency_plain_low", "efficiency_plain_high"),
        "1 (shown in %)",
        "X(n) / (n X(plain)), with X(plain) of the script at 1x1 with no launcher and no process group; at 1x1, the "
        "difference to 100 % is the cost of DDP on one GPU.",
    ),
    Definition(
        "step time",
        ("step_time_s", "step_time_s_low", "step_time_s_high"),
        "s (shown in ms)",
        "median over blocks of (the slowest rank's block time / steps in the block); all time / all steps if "
        "samples/s is samples / time.",
    ),
    Definition(
        "p5, p95, drift",
        ("step_time_s_p5", "step_time_s_p95", "drift_fraction"),
        "s; 1",
        "percentiles of single steps, each that of its slowest rank; step time in the last third of the blocks / in "
        "the first, minus 1. In scaling.csv; a drift over 5 % is noted.",
    ),
    Definition(
        "data wait",
        ("data_wait_fraction",),
        "1 (shown in %)",
        "time spent waiting for the data loader / step time, over all ranks.",
    ),
    Definition(
        "exposed comm.",
        ("exposed_comm_fraction",),
        "1 (shown in %)",
        "gradient communication that the backward pass did not hide / step time, as DDP measures it.",
    ),
    Definition(
        "straggler",
        ("straggler_fraction",),
        "1 (shown in %)",
        "(slowest rank's median step - median rank's) / slowest rank's.",
    ),
    Definition(
        "start-up",
        ("startup_s",),
        "s",
        "from the launcher's start to the end of the first step, on the slowest rank; not part of the "
        "throughput. Median over repeats.",
    ),
    Definition(
        "parts of it",
        STARTUP_PARTS,
        "s",
        "on the same rank: spawn, until Python runs in it; import torch; process group, its initialisation with the "
        "wait for other ranks; script, the rest: other imports, data, model; first step, from the request for its "
        "first batch. torch.compile, of the whole run, is contained in the others, mostly in the first step.",
    ),
    Definition(
        "GPU h per million samples",
        ("gpu_hours_per_million_samples",),
        "h",
        "n x 1,000,000 / X(n) / 3600.",
    ),
    Definition(
        "status",
        ("status", "note"),
        "",
        "ok; check: efficiency over 105 %; incomplete: repeats are missing; not comparable: a "
        "field differs from the baseline; failed: a repeat failed; not run.",
    ),
)
