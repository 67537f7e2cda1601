"""What every raw file of a run starts with."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ddp_ladder.common.model import Model, Version1


class Job(Model):
    """The job of a run, and the attempt that made it."""

    id: Annotated[str, Field(min_length=1)]
    attempt: int = Field(ge=1, description="Number of the attempt, from 1.")
    run_id: Annotated[str, Field(min_length=1)] = Field(
        description="Random id of this attempt: each of its processes writes it into its file."
    )


class RawFile(Model):
    """The keys that every raw file starts with. They show that it belongs to this spec, job and attempt."""

    schema_version: Version1
    spec_hash: str
    job: Job
