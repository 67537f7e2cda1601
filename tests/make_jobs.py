"""Files of jobs, results/jobs/<scale>/<job>.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddp_ladder.accounting.jobs import JobFile
from ddp_ladder.common.files import write_json
from make_runs import STARTED_AT_S

JOB = "41"
BEGUN_S = STARTED_AT_S - 10


def write_job(results: Path, name: str = JOB, **changes: Any) -> None:
    """Write the file of a job of two GPUs on one node."""
    usual: dict[str, Any] = {
        "schema_version": 1,
        "kind": "measure",
        "stage": "stage2",
        "scale": "1x2",
        "in_allocation": False,
        "job_id": JOB,
        "nodes": 1,
        "gpus": 2,
        "runs_planned": 2,
        "specs": "0123456789",
        "begun_at_s": BEGUN_S,
        "ended_at_s": BEGUN_S + 100,
    }
    file = JobFile(**{**usual, **changes})
    write_json(results / "jobs" / file.scale / f"{name}.json", file.model_dump())
