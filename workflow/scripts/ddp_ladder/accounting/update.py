"""Bring results/accounting.csv up to date: rows for jobs that have ended, completed as soon as Slurm knows more."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ddp_ladder.accounting.ask import accounted_jobs, controlled_job
from ddp_ladder.accounting.job_file import JobFile, job_files
from ddp_ladder.accounting.parts import Parts, parts_of
from ddp_ladder.accounting.row import JobRow, row_of
from ddp_ladder.accounting.slurm_job import SlurmJob
from ddp_ladder.accounting.table import merged, read_rows, write_rows
from ddp_ladder.common.files import NotWritten
from ddp_ladder.slurm.job_end import read_job_end
from ddp_ladder.slurm.job_names import scale_of_name

REPORT_WAITS_S = 5.0  # for a database that is late
LATE_S = 120.0
CLOCKS_S = 600.0  # clocks of a cluster differ by less, or munge would reject Slurm's messages
MOST_QUESTIONS = 20  # to the controller, about jobs that it may have forgotten


@dataclass(frozen=True)
class KnownJob:
    """A job of these results. file: None if it never started."""

    name: str
    stage: str
    scale: str
    file: JobFile | None

    @property
    def slurm_id(self) -> str | None:
        """Its id in Slurm; None if it is not a Slurm job of its own."""
        if self.file is None:
            return self.name
        return self.file.job_id if self.file.job_id.isdecimal() and not self.file.in_allocation else None


def update(results: Path, wait_s: float = 0.0) -> tuple[JobRow, ...]:
    """Write the rows of jobs that have ended since, and return all rows.

    wait_s: how long to wait for a database that does not know yet how a job ended. Raises OSError (NotWritten) or
    ValueError if the file cannot be read or written.
    """
    rows = read_rows(results)
    by_job = {(row.scale, row.job_id): row for row in rows}
    jobs = [job for job in known_jobs(results) if not _is_final(job, by_job.get((job.scale, job.name)))]
    if not any(_ended_lately(job, by_job.get((job.scale, job.name))) for job in jobs):
        wait_s = 0.0
    in_slurm = [job.slurm_id for job in jobs if job.slurm_id]
    slurms = _ask(in_slurm, {row.job_id for row in rows if row.source != "none"}, wait_s)
    new = [row for job in jobs if (row := _row(results, job, slurms)) is not None]
    found = merged(rows, new)
    if found != rows:
        write_rows(results, found)
    return found


def update_or_warn(results: Path, wait_s: float = 0.0) -> tuple[tuple[JobRow, ...], tuple[str, ...]]:
    """Update, and return all rows; without rows, a warning: the accounting keeps nothing else from going on."""
    try:
        return update(results, wait_s), ()
    except NotWritten as error:
        return (), (f"{error.filename} cannot be written: {error.strerror}",)
    except (OSError, ValueError) as error:
        return (), (f"{error}; move it away, and `snakemake report` writes it again",)


def read_or_warn(results: Path) -> tuple[tuple[JobRow, ...], tuple[str, ...]]:
    """Return the rows as they are; without rows, a warning."""
    try:
        return read_rows(results), ()
    except (OSError, ValueError) as error:
        return (), (f"{error}; move it away, and `snakemake report` writes it again",)


def known_jobs(results: Path) -> Iterator[KnownJob]:
    """Yield the jobs that left a file, and the last one of each scale if it never started."""
    seen = set()
    for name, file in job_files(results):
        seen.add(file.job_id)
        yield KnownJob(name, file.stage, file.scale, file)
    for path in sorted((results / "jobs").glob("*.json")):
        try:
            end = read_job_end(results, path.stem)
        except (OSError, ValueError):
            continue
        if end is not None and end.job_id.isdecimal() and end.job_id not in seen:
            yield KnownJob(end.job_id, end.stage, end.scale, None)


def _is_final(job: KnownJob, row: JobRow | None) -> bool:
    """Return True if nobody will know more of a job than its row does."""
    if row is None or job.slurm_id is None:
        return row is not None
    return row.source == "sacct" and (row.memory_source == "sacct" or not _ended_lately(job, row))


def _ended_lately(job: KnownJob, row: JobRow | None) -> bool:
    """Return True if the database may still learn of a job's end; it never will of older ones that it lacks."""
    if job.slurm_id is None:
        return False
    end_s = datetime.fromisoformat(row.ended_at).timestamp() if row else job.file.ended_at_s if job.file else None
    return end_s is not None and time.time() - end_s < LATE_S


def _ask(job_ids: list[str], with_row: set[str], wait_s: float) -> dict[str, SlurmJob]:
    if not job_ids:
        return {}
    accounted = accounted_jobs(job_ids, wait_s) or {}
    others = [job_id for job_id in job_ids if job_id not in accounted and job_id not in with_row]
    controlled = {job_id: job for job_id in others[-MOST_QUESTIONS:] if (job := controlled_job(job_id))}
    return {**accounted, **controlled}


def _is_of(slurm: SlurmJob, job: KnownJob) -> bool:
    """Return True if Slurm means this job: in results that were copied, the id may be that of another cluster's job."""
    if scale_of_name(slurm.name) != job.scale:
        return False
    if job.file is None or slurm.start_s is None or slurm.end_s is None:
        return True
    return slurm.start_s - CLOCKS_S <= job.file.begun_at_s <= slurm.end_s + CLOCKS_S


def _row(results: Path, job: KnownJob, slurms: Mapping[str, SlurmJob]) -> JobRow | None:
    """Return the row of a job; None if it is not known to be over."""
    file, slurm = job.file, slurms.get(job.slurm_id or "")
    if slurm is not None and not _is_of(slurm, job):
        slurm = None
    if slurm is None and (file is None or file.ended_at_s is None):
        return None
    parts = Parts()
    if file is not None:
        end_s = file.ended_at_s if file.ended_at_s is not None else slurm.end_s if slurm else None
        parts = parts_of(results, job.scale, file.job_id, (file.begun_at_s, math.inf if end_s is None else end_s))
    return row_of(job.name, job.stage, job.scale, file, slurm, parts)
