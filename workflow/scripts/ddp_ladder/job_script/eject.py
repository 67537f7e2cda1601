"""Write a run's job.sh."""

from __future__ import annotations

from pathlib import Path

from ddp_ladder.common.files import RunDirectory, write_atomically
from ddp_ladder.job_script.script import job_script
from ddp_ladder.node.launch import Places
from ddp_ladder.node.software import container_binds
from ddp_ladder.plan.plan import RunSpec, ScaleJob


def write_job_script(job: ScaleJob, spec: RunSpec, directory: RunDirectory) -> Path:
    """Write job.sh into the run's directory; the working directory is the project. Return its path."""
    places = Places.here(directory.path)
    write_atomically(directory.job_script, job_script(job, spec, places, container_binds(spec, places)), mode=0o777)
    return directory.job_script
