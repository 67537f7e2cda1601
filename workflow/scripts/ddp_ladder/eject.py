"""Write a run's job.sh."""

from __future__ import annotations

from pathlib import Path

from ddp_ladder.files import RunDirectory, write_atomically
from ddp_ladder.job_script import job_script
from ddp_ladder.job_script_header import Place
from ddp_ladder.launch import Places
from ddp_ladder.plan import RunSpec, ScaleJob
from ddp_ladder.software import container_binds


def write_job_script(job: ScaleJob, spec: RunSpec, directory: RunDirectory) -> Path:
    """Write job.sh into the run's directory; the working directory is the project. Returns its path."""
    place = Place(Path.cwd(), directory.path, container_binds(spec, Places.here(directory.path)))
    write_atomically(directory.job_script, job_script(job, spec, place), mode=0o777)
    return directory.job_script
