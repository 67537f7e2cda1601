"""Requests that are far too large, or nearly used up, with the value to set. Pure.

Only jobs count that ran every planned run of their scale well, as the plan has them now: the rest shows no need. What
is asked is what the plan asks, so advice that was followed is not given again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddp_ladder.accounting.job_file import runs_of, specs_digest
from ddp_ladder.accounting.row import JobRow
from ddp_ladder.common.formats import duration
from ddp_ladder.plan.plan import Plan, ScaleJob
from ddp_ladder.slurm.states import ENDED_WELL

MEMORY_MARGIN = 1.5  # asked / used: other nodes may need a little more, and a job that lacks memory is killed
RUNTIME_MARGIN = 1.5  # a slow node or a busy file system
CPU_MARGIN = 1.5  # cores / the most that were busy between two samples
TOO_LARGE = 2.0  # asked / what would be asked with its margin; below, the saving is not worth a change
CPUS_TOO_LARGE = 3.0  # the busiest moment may have been between two samples, and cores come with GPUs at many sites
NEARLY_USED = 0.9
LEAST_SAVED_MIN = 15  # a shorter time limit lets a job start in gaps of the queue, if they are shorter by this
LEAST_MEMORY_MB = 4000  # per GPU: Python, torch and its libraries
LEAST_RUNTIME_MIN = 10
LEAST_CPUS_PER_GPU = 2

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


@dataclass(frozen=True)
class _Need:
    """What one scale has used of a resource, and what the plan asks for it. Per node, or in minutes."""

    scale: str
    asked: float
    used: float
    value: float  # of the key, so that the scale gets what it used with the margin
    key: float  # its value now


def advice(plan: Plan, rows: Sequence[JobRow]) -> list[RequestAdvice]:
    """Return what to change in the requests, most important first."""
    jobs = [(job, _good_rows(job, rows)) for job in plan.jobs]
    return [*_memory(jobs), *(each for stage in plan.stages for each in _runtime(stage, jobs)), *_cpus(jobs)]


def _good_rows(job: ScaleJob, rows: Sequence[JobRow]) -> list[JobRow]:
    """Return the rows of a scale's own Slurm jobs that ended well and in which every run did."""
    return [
        row
        for row in rows
        if (row.scale, row.specs, row.kind) == (str(job.scale), specs_digest(job), "measure")
        and (row.state, row.runs_ok) == (ENDED_WELL, row.runs_measured)
        and row.runs_ok > 0
    ]


Jobs = Sequence[tuple[ScaleJob, Sequence[JobRow]]]


def _memory(jobs: Jobs) -> Iterator[RequestAdvice]:
    needs = []
    for job, rows in jobs:
        used = [row.memory_used_mb_per_node for row in rows if row.memory_used_mb_per_node]
        if not used or job.memory_mb is None or job.node_gpus is None:
            continue
        gpus = job.scale.gpus_per_node
        needed_mb = max(MEMORY_MARGIN * max(used), LEAST_MEMORY_MB * gpus)
        whole = job.node_gpus / gpus
        needs.append(_Need(_name(job), job.memory_mb, max(used), needed_mb * whole, job.memory_mb * whole))
    if not needs:
        return
    value = _rounded_up(max(need.value for need in needs), MEMORY_STEPS_MB)
    tight = max(needs, key=lambda need: need.used / need.asked)
    largest = max(needs, key=lambda need: need.value)
    if tight.used > NEARLY_USED * tight.asked:
        why = f"memory nearly used up: asked {tight.asked:.0f} MB per node, used {tight.used:.0f} ({tight.scale})"
        yield RequestAdvice("node.memory_mb", "cluster.yaml", value, why, OR_LESS_MEMORY)
    elif len(needs) == len(jobs) and largest.key >= TOO_LARGE * value:  # a scale that was not measured may need more
        why = f"memory: asked {largest.asked:.0f} MB per node, used {largest.used:.0f} at most ({largest.scale})"
        yield RequestAdvice("node.memory_mb", "cluster.yaml", value, why)


def _runtime(stage: str, jobs: Jobs) -> Iterator[RequestAdvice]:
    of_stage = [(job, [row for row in rows if _is_whole(job, row)]) for job, rows in jobs if job.stage == stage]
    needs = []
    for job, rows in of_stage:
        if longest := max((row.elapsed_s / 60 for row in rows), default=0.0):
            needs.append(_Need(str(job.scale), job.runtime_min, longest, runtime_for(longest), job.runtime_min))
    if not needs:
        return
    need = max(needs, key=lambda need: need.used)
    value = runtime_for(need.used)
    key = f"stages.{stage}.runtime"
    if need.used > NEARLY_USED * need.asked:
        why = f"time nearly used up: asked {need.asked:.0f} min, took {duration(60 * need.used)} ({need.scale})"
        yield RequestAdvice(key, "config.yaml", value, why, OR_LESS_TIME)
    elif any(job.is_adaptive for job, _ in of_stage):
        return  # a job that ended early would have used more time for more repeats
    elif len(needs) == len(of_stage) and need.asked >= max(TOO_LARGE * value, value + LEAST_SAVED_MIN):
        why = f"time: asked {need.asked:.0f} min, took {duration(60 * need.used)} at most ({need.scale})"
        yield RequestAdvice(key, "config.yaml", value, why)


def runtime_for(longest_min: float) -> int:
    """Return the runtime to ask for, in minutes, if the longest job takes or will take ``longest_min``."""
    return _rounded_up(max(RUNTIME_MARGIN * longest_min, LEAST_RUNTIME_MIN), RUNTIME_STEPS_MIN)


def whole_rows(job: ScaleJob, rows: Sequence[JobRow]) -> list[JobRow]:
    """Return the rows of jobs that measured all runs of a scale well, as the plan has them now."""
    return [row for row in _good_rows(job, rows) if _is_whole(job, row)]


def _is_whole(job: ScaleJob, row: JobRow) -> bool:
    """Return True for a job that measured all runs of its scale: one that kept some took less time."""
    return row.runs_measured >= row.runs_planned == runs_of(job)


def _name(job: ScaleJob) -> str:
    """Return the scale, with its share of a node if it asks for less than a whole one."""
    gpus = job.scale.gpus_per_node
    return str(job.scale) if gpus == job.node_gpus else f"{job.scale}, {gpus} of {job.node_gpus} GPUs of a node"


def _cpus(jobs: Jobs) -> Iterator[RequestAdvice]:
    needs = []
    for job, rows in jobs:
        used = [row.cpu_cores_most_per_node for row in rows if row.cpu_cores_most_per_node]
        if not used or job.node_gpus is None:
            continue
        gpus = job.scale.gpus_per_node
        per_gpu = max(math.ceil(CPU_MARGIN * max(used) / gpus), LEAST_CPUS_PER_GPU)
        needs.append(_Need(_name(job), job.cpus, max(used), per_gpu * job.node_gpus, job.runs[0].cpus_per_node))
    if not needs or len(needs) < len(jobs):
        return
    need = max(needs, key=lambda need: need.value)
    if need.key >= CPUS_TOO_LARGE * need.value:
        why = f"cores: asked {need.asked:.0f} per node, at most {need.used:.1f} were busy ({need.scale})"
        note = "unless the site gives each GPU a fixed number; every run is then measured again"
        yield RequestAdvice("node.cpus", "cluster.yaml", round(need.value), why, note)


def _rounded_up(value: float, steps: Sequence[tuple[float, int]]) -> int:
    step = next(step for below, step in steps if value < below)
    return math.ceil(value / step) * step
