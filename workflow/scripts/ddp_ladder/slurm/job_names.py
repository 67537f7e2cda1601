"""Names of the ladder's Slurm jobs. A job whose id was not recorded is found by its name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from ddp_ladder.common.files import sha256
from ddp_ladder.slurm.query import squeue
from ddp_ladder.slurm.states import JobState, job_state

_NAME = re.compile(r"(?P<scale>\d+x\d+)-ddp-ladder-(?P<results>[0-9a-f]{10})-[0-9a-f]{10}")
_DIGITS = 10


@dataclass(frozen=True)
class NamedJob:
    """A job of the ladder that Slurm knows."""

    id: str
    name: str
    scale: str
    state: JobState


def new_job_name(results: Path, scale: str) -> str:
    """Return a name that is unique to one submission of a scale in a results directory.

    The scale comes first, because squeue shows the first eight characters.
    """
    return f"{scale}-ddp-ladder-{_digest(results)}-{uuid4().hex[:_DIGITS]}"


def scale_of_name(name: str) -> str | None:
    """Return the scale of a job that a ladder has submitted; None for the name of any other job."""
    form = _NAME.fullmatch(name)
    return form and form["scale"]


def jobs_by_name(results: Path) -> list[NamedJob]:
    """Return the jobs of a results directory that Slurm knows, of every start, oldest first. Raises SlurmError."""
    found = []
    for job, state, start, nodes, reason, name in squeue("iTSNrj", "--states=all"):
        form = _NAME.fullmatch(name)
        if form and form["results"] == _digest(results):
            found.append(NamedJob(job, name, form["scale"], job_state(state, start, nodes, reason)))
    return sorted(found, key=lambda one: int(one.id))


def _digest(results: Path) -> str:
    return sha256(str(results.resolve()).encode())[:_DIGITS]
