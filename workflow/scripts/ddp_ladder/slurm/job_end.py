"""The end of a scale's job, results/jobs/<scale>.json: the gate shows it for a scale without records.

The file exists from the submission to a good end, and stays after a bad one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from ddp_ladder.common.files import read_json, write_json

SCHEMA_VERSION = 1
SUBMITTED = "SUBMITTED"  # our own word: nobody has seen its end
NOT_SUBMITTED = "NOT_SUBMITTED"  # there is no such job


@dataclass(frozen=True)
class JobEnd:
    """One job's end. It can keep a gate closed, never open one: that takes records."""

    job_id: str
    stage: str
    scale: str
    state: str  # Slurm's: COMPLETED, TIMEOUT, ...; GONE if Slurm has forgotten it; SUBMITTED; NOT_SUBMITTED
    log: str
    ok: bool = False
    nodes: str = ""
    reason: str = ""  # Slurm's
    why: str = ""
    next: str = "start snakemake again: finished runs are kept"

    @property
    def in_words(self) -> str:
        """``job 12 ended TIMEOUT on node[1-2]: its time was up``."""
        if self.state == NOT_SUBMITTED:
            return f"the job was not submitted: {self.why}"
        if self.state == SUBMITTED:
            return f"job {self.job_id} was submitted, and nobody has seen its end"
        where = f" on {self.nodes}" if self.nodes else ""
        why = f": {self.why}" if self.why else ""
        given = f" ({self.reason})" if self.reason and not self.ok else ""
        return f"job {self.job_id} ended {self.state}{where}{why}{given}"

    @property
    def evidence(self) -> str:
        """The end in words, with the path of the log."""
        return f"{self.in_words}; its log: {self.log}" if self.log else self.in_words


def job_end_file(results: Path, scale: str) -> Path:
    """Return the file with the end of a scale's last job."""
    return results / "jobs" / f"{scale}.json"


def write_job_end(results: Path, end: JobEnd) -> Path:
    """Write the end for the gate and the next start; return the file."""
    path = job_end_file(results, end.scale)
    write_json(path, {"schema_version": SCHEMA_VERSION, **asdict(end)})
    return path


def read_job_end(results: Path, scale: str) -> JobEnd | None:
    """Return the end of a scale's last job; None if it ended well. Raises ValueError if the file holds none."""
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
        raise ValueError(f"{path} does not hold the end of a job: {error}") from error
