"""Requests that are far too large, or nearly used up, with the value to set; and the accounting for people. Pure.

Only jobs count that ran every planned run of their scale well, as the plan has them now: the rest shows no need. What
is asked is what the plan asks, so advice that was followed is not given again.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.accounting.jobs import JobRow, accounting_file, runs_of, specs_digest
from ddp_ladder.analysis.forecast import device_of
from ddp_ladder.common.formats import UNKNOWN, duration, percent, significant
from ddp_ladder.plan.plan import Plan, ScaleJob
from ddp_ladder.slurm.jobs import ENDED_WELL

MEMORY_MARGIN = 1.5  # asked / used: other nodes may need a little more, and a job that lacks memory is killed
RUNTIME_MARGIN = 1.5  # a slow node or a busy file system
TOO_LARGE = 2.0  # asked / what would be asked with its margin; below, the saving is not worth a change
NEARLY_USED = 0.9
LEAST_SAVED_MIN = 15  # a shorter time limit lets a job start in gaps of the queue, if they are shorter by this
LEAST_MEMORY_MB = 4000  # per GPU: Python, torch and its libraries
LEAST_RUNTIME_MIN = 10

# Nothing here knows how much memory the nodes have, or how long a partition lets a job run.
OR_LESS_MEMORY = "if the nodes have as much; otherwise a smaller batch or fewer loader workers"
OR_LESS_TIME = "if the partition allows it; otherwise fewer steps: measure.max_steps"

MEMORY_STEPS_MB = ((16_000, 1000), (128_000, 4000), (math.inf, 16_000))  # below the first figure, rounded to the second
RUNTIME_STEPS_MIN = ((60, 5), (240, 15), (math.inf, 60))


@dataclass(frozen=True)
class RequestAdvice:
    """One request to change: ``node.memory_mb: 48000`` of cluster.yaml, and why."""

    key: str
    file: str
    value: int
    why: str
    note: str = ""

    @property
    def text(self) -> str:
        """``asked 440000 MB per node, used 31000 at most (2x4): node.memory_mb: 48000 in cluster.yaml``."""
        return f"{self.why}: {self.key}: {self.value} in {self.file}" + (f" ({self.note})" if self.note else "")


Jobs = Sequence[tuple[ScaleJob, Sequence[JobRow]]]


def advice(plan: Plan, rows: Sequence[JobRow]) -> list[RequestAdvice]:
    """Return what to change in the requests, most important first."""
    jobs = [(job, _good_rows(job, rows)) for job in plan.jobs]
    return [*_memory(jobs), *(each for stage in plan.stages for each in _runtime(stage, jobs))]


def _good_rows(job: ScaleJob, rows: Sequence[JobRow]) -> list[JobRow]:
    """Return the rows of a scale's own Slurm jobs that ended well and in which every run did."""
    return [
        row
        for row in rows
        if (row.scale, row.specs, row.kind) == (str(job.scale), specs_digest(job), "measure")
        and row.state == ENDED_WELL
        and row.runs_ok == row.runs_measured > 0
    ]


def whole_rows(job: ScaleJob, rows: Sequence[JobRow]) -> list[JobRow]:
    """Return the rows of jobs that measured all runs of a scale well, as the plan has them now.

    A job that kept some runs of an earlier one took less time.
    """
    good = _good_rows(job, rows)
    return [row for row in good if row.runs_measured >= row.runs_planned == runs_of(job)]


def _memory(jobs: Jobs) -> Iterator[RequestAdvice]:
    """Yield the change of node.memory_mb. A scale that uses a part of a node asks for the same part of its memory."""
    needs = []  # the memory that a node needs for the scale, and what the scale used and asked for
    for job, rows in jobs:
        used_mb = max((row.memory_used_mb_per_node or 0 for row in rows), default=0)
        if used_mb and job.memory_mb is not None and job.node_gpus is not None:
            gpus = job.scale.gpus_per_node
            needed_mb = max(MEMORY_MARGIN * used_mb, LEAST_MEMORY_MB * gpus) * job.node_gpus / gpus
            needs.append((needed_mb, used_mb, job.memory_mb, job))
    if not needs:
        return
    value = _rounded_up(max(need[0] for need in needs), MEMORY_STEPS_MB)
    _, used_mb, asked_mb, job = max(needs, key=lambda need: need[1] / need[2])
    if used_mb > NEARLY_USED * asked_mb:
        why = f"memory nearly used up: asked {asked_mb} MB per node, used {used_mb} ({_name(job)})"
        yield RequestAdvice("node.memory_mb", "cluster.yaml", value, why, OR_LESS_MEMORY)
        return
    _, used_mb, asked_mb, job = max(needs, key=lambda need: need[0])
    whole_node_mb = asked_mb * (job.node_gpus or 1) / job.scale.gpus_per_node
    if len(needs) == len(jobs) and whole_node_mb >= TOO_LARGE * value:  # a scale that was not measured may need more
        why = f"memory: asked {asked_mb} MB per node, used {used_mb} at most ({_name(job)})"
        yield RequestAdvice("node.memory_mb", "cluster.yaml", value, why)


def _runtime(stage: str, jobs: Jobs) -> Iterator[RequestAdvice]:
    """Yield the change of a stage's runtime, which all its jobs ask for."""
    of_stage = [(job, whole_rows(job, rows)) for job, rows in jobs if job.stage == stage]
    longest = [(max(row.elapsed_s for row in rows) / 60, job) for job, rows in of_stage if rows]
    if not longest:
        return
    took_min, job = max(longest, key=lambda each: each[0])
    value, asked_min = runtime_for(took_min), job.runtime_min
    key, took = f"stages.{stage}.runtime", duration(60 * took_min)
    if took_min > NEARLY_USED * asked_min:
        why = f"time nearly used up: asked {asked_min} min, took {took} ({job.scale})"
        yield RequestAdvice(key, "config.yaml", value, why, OR_LESS_TIME)
    elif any(job.is_adaptive for job, _ in of_stage) or len(longest) < len(of_stage):
        return  # for more repeats a job would have used more time; a scale that was not measured may need more
    elif asked_min >= max(TOO_LARGE * value, value + LEAST_SAVED_MIN):
        why = f"time: asked {asked_min} min, took {took} at most ({job.scale})"
        yield RequestAdvice(key, "config.yaml", value, why)


def runtime_for(longest_min: float) -> int:
    """Return the runtime to ask for, in minutes, if the longest job takes or will take ``longest_min``."""
    return _rounded_up(max(RUNTIME_MARGIN * longest_min, LEAST_RUNTIME_MIN), RUNTIME_STEPS_MIN)


def _name(job: ScaleJob) -> str:
    """Return the scale, with its share of a node if it asks for less than a whole one."""
    gpus = job.scale.gpus_per_node
    return str(job.scale) if gpus == job.node_gpus else f"{job.scale}, {gpus} of {job.node_gpus} GPUs of a node"


def _rounded_up(value: float, steps: Sequence[tuple[float, int]]) -> int:
    step = next(step for below, step in steps if value < below)
    return math.ceil(value / step) * step


# --- For people.

HEADINGS = (
    "Job",
    "Scale",
    "State",
    "Queue",
    "Elapsed",
    "Preflight",
    "Start-up",
    "Training",
    "Other",
    "GPU h asked",
    "held",
    "training",
    "CPU",
    "Memory per node (MB)",
    "Times by",
)
WIDTH = 100


@dataclass(frozen=True)
class AccountingTable:
    """The accounting as a table: texts only. totals: one sentence. advice: one line per request to change."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    totals: str
    advice: tuple[str, ...]


def accounting_table(plan: Plan, rows: Sequence[JobRow]) -> AccountingTable:
    """Return the table of all jobs, in the order of their ends."""
    found = tuple(each.text for each in advice(plan, rows))
    return AccountingTable(HEADINGS, tuple(_cells(row) for row in rows), totals(rows, device_of(plan)), found)


def totals(rows: Sequence[JobRow], unit: str = "GPU") -> str:
    """Return the hours of all jobs: ``3 jobs held 4.20 GPU h, 3.10 of them in training; ...``."""
    held, training = sum(row.gpu_hours_held for row in rows), sum(row.gpu_hours_training for row in rows)
    asked = sum(row.gpu_hours_asked or 0.0 for row in rows)
    jobs = "1 job" if len(rows) == 1 else f"{len(rows)} jobs"
    text = f"{jobs} held {significant(held)} {unit} h, {significant(training)} of them in training"
    return f"{text}; asked for {significant(asked)} {unit} h"


def terminal_lines(plan: Plan, rows: Sequence[JobRow], results: Path) -> list[str]:
    """Return the lines below the final table; none without a job."""
    if not rows:
        return []
    lines = [f"used     {totals(rows, device_of(plan))}; {accounting_file(results)}"]
    lines += [f"request  {each.text}" for each in advice(plan, rows)]
    return [part for line in lines for part in textwrap.wrap(line, WIDTH, subsequent_indent=" " * 9)]


def _cells(row: JobRow) -> tuple[str, ...]:
    return (
        row.job_id,
        row.scale,
        row.state,
        UNKNOWN if row.queue_wait_s is None else duration(row.queue_wait_s),
        duration(row.elapsed_s),
        duration(row.preflight_s),
        duration(row.startup_s),
        duration(row.training_s),
        duration(row.other_s),
        significant(row.gpu_hours_asked),
        significant(row.gpu_hours_held),
        significant(row.gpu_hours_training),
        percent(row.cpu_efficiency),
        _memory_words(row),
        "the job itself" if row.source == "none" else row.source,
    )


def _memory_words(row: JobRow) -> str:
    """``31,000 of 440,000 (7 %)``."""
    used = UNKNOWN if row.memory_used_mb_per_node is None else f"{row.memory_used_mb_per_node:,}"
    if row.memory_asked_mb_per_node is None:
        return used
    return f"{used} of {row.memory_asked_mb_per_node:,} ({percent(row.memory_efficiency)})"
