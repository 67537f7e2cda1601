"""The accounting for people: lines for the terminal, and headings and rows of a table for the report. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.accounting.advice import advice
from ddp_ladder.accounting.row import HOUR_S, JobRow
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
    "Source",
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
    """Return the hours of all jobs: ``3 jobs held 4.20 GPU h, 3.10 GPU h of them in training; ...``."""
    held, training = sum(row.gpu_hours_held for row in rows), sum(row.gpu_hours_training for row in rows)
    asked = sum(row.gpu_hours_asked or 0.0 for row in rows)
    jobs = "1 job" if len(rows) == 1 else f"{len(rows)} jobs"
    text = f"{jobs} held {_hours(held, unit)}, {_hours(training, unit)} of them in training"
    text += f"; asked for {_hours(asked, unit)}"
    busy = [row.gpu_hours_busy for row in rows]
    known = [hours for hours in busy if hours is not None]
    return f"{text}; GPUs busy for {_hours(sum(known), unit)}" if known and len(known) == len(busy) else text


def terminal_lines(plan: Plan, rows: Sequence[JobRow], results: Path) -> list[str]:
    """Return the lines below the final table; none without a job."""
    if not rows:
        return []
    lines = [f"used     {totals(rows, device_of(plan))}; {accounting_file(results)}"]
    lines += [f"request  {each.text}" for each in advice(plan, rows)]
    return [part for line in lines for part in textwrap.wrap(line, WIDTH, subsequent_indent=" " * 9)]


def _hours(hours: float, unit: str) -> str:
    return f"{significant(hours)} {unit} h" if hours >= 0.01 else f"{hours * HOUR_S:.0f} {unit} s"


def _cells(row: JobRow) -> tuple[str, ...]:
    energies = [value for value in (row.joules_per_sample_nvml, row.joules_per_sample_sacct) if value is not None]
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
        percent(row.cpu_efficiency),
        _memory(row),
        significant(energies[0]) if energies else UNKNOWN,
        row.source,
    )


def _memory(row: JobRow) -> str:
    """``31,000 of 440,000 (7 %)``."""
    used = UNKNOWN if row.memory_used_mb_per_node is None else f"{row.memory_used_mb_per_node:,}"
    if row.memory_asked_mb_per_node is None:
        return used
    return f"{used} of {row.memory_asked_mb_per_node:,} ({percent(row.memory_efficiency)})"
