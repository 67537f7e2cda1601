"""The accounting for people: lines for the terminal, and headings and rows of a table for the report. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.accounting.advice import advice
from ddp_ladder.accounting.row import JobRow
from ddp_ladder.accounting.table import accounting_file
from ddp_ladder.analysis.forecast_text import device_of
from ddp_ladder.common.formats import UNKNOWN, duration, percent, significant
from ddp_ladder.plan.plan import Plan

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
    "Idle",
    "GPU h asked",
    "held",
    "training",
    "CPU",
    "Memory per node (MB)",
    "J/sample",
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
    text += f"; asked for {significant(asked)} {unit} h"
    busy = [row.gpu_hours_busy for row in rows]
    known = [hours for hours in busy if hours is not None]
    return f"{text}; GPUs busy for {significant(sum(known))} {unit} h" if known and len(known) == len(busy) else text


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
        duration(row.run_other_s),
        duration(row.idle_s),
        significant(row.gpu_hours_asked),
        significant(row.gpu_hours_held),
        significant(row.gpu_hours_training),
        ("at least " if row.cpu_source == "sstat" else "") + percent(row.cpu_efficiency),
        _memory(row),
        _joules_per_sample(row),
        "the job itself" if row.source == "none" else row.source,
    )


def _joules_per_sample(row: JobRow) -> str:
    """``0.0213 (GPUs)``, or ``0.151 (nodes)`` where only Slurm measured energy: the two cannot be compared."""
    for value, measured in ((row.joules_per_sample_nvml, "GPUs"), (row.joules_per_sample_sacct, "nodes")):
        if value is not None:
            return f"{significant(value)} ({measured})"
    return UNKNOWN


def _memory(row: JobRow) -> str:
    """``31,000 of 440,000 (7 %)``."""
    used = UNKNOWN if row.memory_used_mb_per_node is None else f"{row.memory_used_mb_per_node:,}"
    if row.memory_asked_mb_per_node is None:
        return used
    return f"{used} of {row.memory_asked_mb_per_node:,} ({percent(row.memory_efficiency)})"
