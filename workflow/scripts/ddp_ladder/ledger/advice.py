"""Time limits that are far too long, or nearly used up, with the value to set; and the accounting for people. Pure.

Only jobs count that ran every planned run of their scale well, as the plan has them now: the rest shows no need. What
is asked is what the plan asks, so advice that was followed is not given again.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from ddp_ladder.common.formats import count, duration
from ddp_ladder.common.messages import columns
from ddp_ladder.ledger.entries import HOUR_S
from ddp_ladder.ledger.jobs import JobRow, accounting_file, runs_of, specs_digest
from ddp_ladder.plan.plan import Hours, HourUnit, Plan, ScaleJob
from ddp_ladder.slurm.jobs import ENDED_WELL

MARGIN = 1.5  # asked / used: a slow node or a busy file system needs more time
TOO_LARGE = 2.0  # asked / what would be asked with its margin; below, the saving is not worth a change
NEARLY_USED = 0.9
LEAST_SAVED_MIN = 15  # a shorter time limit lets a job start in gaps of the queue, if they are shorter by this
LEAST_RUNTIME_MIN, RUNTIME_STEP_MIN = 10, 5
OR_LESS_TIME = "if the partition allows it; otherwise fewer steps: measure.max_steps"


def advice(plan: Plan, rows: Sequence[JobRow]) -> list[str]:
    """Return what to change: ``time: 1x1 asked 240 min, took 12 min: stages.stage1.runtime: 20 in config.yaml``."""
    return [change for stage in plan.stages for change in _runtime(plan.stage_jobs(stage), rows)]


def whole_rows(job: ScaleJob, rows: Sequence[JobRow]) -> list[JobRow]:
    """Return the rows of a scale's own Slurm jobs that measured all its runs well, as the plan has them now.

    A job that kept some runs of an earlier one took less time.
    """
    wanted = (str(job.scale), specs_digest(job), "measure", ENDED_WELL)
    good = [row for row in rows if (row.scale, row.specs, row.kind, row.state) == wanted and row.runs_ok > 0]
    return [row for row in good if row.runs_ok == row.runs_measured >= row.runs_planned == runs_of(job)]


def _runtime(jobs: Sequence[ScaleJob], rows: Sequence[JobRow]) -> Iterator[str]:
    """Yield the change of a stage's runtime, which all its jobs ask for."""
    of_stage = [(job, whole_rows(job, rows)) for job in jobs]
    longest = [(max(row.elapsed_s for row in rows) / 60, job) for job, rows in of_stage if rows]
    if not longest:
        return
    took_min, job = max(longest, key=itemgetter(0))
    value, asked_min = runtime_for(took_min), job.runtime_min
    # For more repeats a job would have used more time; a scale that was not measured may need more.
    may_need_more = any(job.is_adaptive for job, _ in of_stage) or len(longest) < len(of_stage)
    is_too_large = not may_need_more and asked_min >= max(TOO_LARGE * value, value + LEAST_SAVED_MIN)
    if took_min > NEARLY_USED * asked_min or is_too_large:
        took = f"time: {job.scale} asked {asked_min} min, took {duration(60 * took_min)}"
        yield f"{took}: stages.{job.stage}.runtime: {value} in config.yaml"


def runtime_for(longest_min: float) -> int:
    """Return the runtime to ask for, in minutes, if the longest job takes or will take ``longest_min``."""
    return math.ceil(max(MARGIN * longest_min, LEAST_RUNTIME_MIN) / RUNTIME_STEP_MIN) * RUNTIME_STEP_MIN


# --- For people.


def totals(rows: Sequence[JobRow], unit: HourUnit) -> str:
    """Return the hours of all jobs: ``3 jobs held 4.20 GPU h, of which 3.10 GPU h in training``."""
    held = (Hours(row.gpu_hours_held, row.elapsed_s * row.nodes / HOUR_S) for row in rows)
    training = (Hours(row.gpu_hours_training, row.training_s * row.nodes / HOUR_S) for row in rows)
    of_all, in_training = (unit.in_words(sum(costs, Hours())) for costs in (held, training))
    return f"{count(len(rows), 'job')} held {of_all}, of which {in_training} in training"


def terminal_lines(plan: Plan, rows: Sequence[JobRow], results: Path) -> list[str]:
    """Return the lines below the final table; none without a job."""
    if not rows:
        return []
    lines = [f"used     {totals(rows, plan.hour_unit)}; {accounting_file(results)}"]
    lines += [f"request  {change}" for change in advice(plan, rows)]
    return [part for line in lines for part in textwrap.wrap(line, columns(), subsequent_indent=" " * 9)]
