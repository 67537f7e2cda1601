"""How Slurm ended a scale's job: what the gate tells of a scale that has no records. results/jobs/<scale>.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from ddp_ladder.files import read_json, write_json

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class JobEnd:
    """One job's end. It can keep a gate closed, never open one: that takes records."""

    job_id: str
    stage: str
    scale: str
    state: str  # Slurm's: COMPLETED, TIMEOUT, ...; GONE where nothing knows it any more
    ok: bool
    nodes: str
    reason: str  # Slurm's
    why: str
    next: str
    log: str

    @property
    def in_words(self) -> str:
        """``job 12 ended TIMEOUT on node[1-2]: its time was up``."""
        where = f" on {self.nodes}" if self.nodes else ""
        why = f": {self.why}" if self.why else ""
        given = f" ({self.reason})" if self.reason and not self.ok else ""
        return f"job {self.job_id} ended {self.state}{where}{why}{given}"


def job_end_file(results: Path, scale: str) -> Path:
    """Where the bad end of a scale's last job is kept."""
    return results / "jobs" / f"{scale}.json"


def write_job_end(results: Path, end: JobEnd) -> Path:
    """Keep a bad end for the gate."""
    path = job_end_file(results, end.scale)
    write_json(path, {"schema_version": SCHEMA_VERSION, **asdict(end)})
    return path


def read_job_end(results: Path, scale: str) -> JobEnd | None:
    """The bad end of a scale's last job; None when there was none. Raises ValueError when the file is another one."""
    path = job_end_file(results, scale)
    try:
        data = read_json(path)
    except FileNotFoundError:
        return None
    try:
        if data.pop("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"{path} is of another version")
        return JobEnd(**data)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} does not tell how a job ended: {error}") from error
