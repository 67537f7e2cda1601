"""Files of jobs, results/jobs/<scale>/<job>.json, rows of the accounting, and the chain that a job is of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddp_ladder.common.files import write_json
from ddp_ladder.ledger.jobs import JobFile, JobRow
from ddp_ladder.production.chain import Chain
from make_runs import STARTED_AT_S

JOB = "41"
BEGUN_S = STARTED_AT_S - 10
LINK = {"kind": "production", "stage": "production"}


def make_row(**changes: Any) -> JobRow:
    """Return the row of a job that sacct knows: twelve minutes on one GPU."""
    usual: dict[str, Any] = {
        "job_id": "4711", "kind": "measure", "stage": "stage1", "scale": "1x1", "source": "sacct", "state": "COMPLETED",
        "ended_at": "2026-11-22T14:12:02Z", "elapsed_s": 720.0, "nodes": 1, "gpus": 1, "runs_planned": 1,
        "runs_measured": 1, "runs_ok": 1, "preflight_s": 0.0, "startup_s": 0.0, "training_s": 600.0,
        "gpu_hours_held": 0.2, "gpu_hours_training": 0.1,
    }  # fmt: skip
    return JobRow(**{**usual, **changes})


def make_chain(**changes: Any) -> Chain:
    """Return a chain of links of an hour at 1x2, half a minute after whose signal a script is to have saved."""
    usual: dict[str, Any] = {
        "scale": "1x2", "gpus": 2, "runtime_min": 60, "up_to_hours": 40.0, "warn_before_s": 30.0,
        "slower_percent": 15.0, "slower": "warn", "promised_samples_per_s": 1000.0,
    }  # fmt: skip
    return Chain(**{**usual, **changes})


def write_job(results: Path, name: str = JOB, **changes: Any) -> None:
    """Write the file of a job of two GPUs on one node."""
    usual: dict[str, Any] = {
        "schema_version": 1, "kind": "measure", "stage": "stage2", "scale": "1x2", "in_allocation": False,
        "job_id": JOB, "nodes": 1, "gpus": 2, "runs_planned": 2, "specs": "0123456789", "begun_at_s": BEGUN_S,
        "ended_at_s": BEGUN_S + 100,
    }  # fmt: skip
    file = JobFile(**{**usual, **changes})
    write_json(results / "jobs" / file.scale / f"{name}.json", file.model_dump())
