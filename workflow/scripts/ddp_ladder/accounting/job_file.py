"""The file of one job, results/jobs/<scale>/<job>.json: what it asked for, when it ran, and samples of its job steps.

The job itself writes it, at its begin and at its end, so that a job that was killed has one too.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ddp_ladder.accounting.ask import WITHIN_S, memory_of_steps, samples_are_needed
from ddp_ladder.accounting.slurm_job import StepUse, with_maxima
from ddp_ladder.common.files import NotWritten, canonical_sha256, read_json, write_json
from ddp_ladder.common.model import Model, Several, Version1
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.slurm.job_names import scale_of_name

FIRST_SAMPLE_S = 10.0
SAMPLE_EVERY_S = 30.0  # all users share the controller, which tells sstat the job's nodes
DIGITS = 10
_OF_A_SCALE = re.compile(r"\d+x\d+")

Kind = Literal["measure", "preflight"]
Positive = Annotated[int, Field(ge=1)]
Ask = Callable[[str], list[StepUse]]


class JobFile(Model):
    """A job's own account of itself. Times are unix times of the host on which it runs."""

    schema_version: Version1
    kind: Kind = Field(description="measure: the runs of a scale; preflight: `snakemake preflight`.")
    stage: str
    scale: str
    in_allocation: bool = Field(description="It is a part of a Slurm job that the user made.")
    job_id: str = Field(description="Slurm's; without Slurm local-<host>-<time>-<process>.")
    nodes: Positive
    gpus: Positive = Field(description="Of the scale; without a GPU a process counts as one.")
    cpus_per_node: Positive = Field(description="Asked for.")
    memory_mb_per_node: Positive | None = Field(description="Asked for, in Slurm's MB (1024 MB are 1 GB).")
    runtime_min: Positive
    runs_planned: int = Field(ge=0, description="Without the plain baseline.")
    specs: str = Field(description="Digest of the planned runs: jobs of the same runs can be compared.")
    runs_at_most: int = Field(default=0, ge=0, description="With all further repeats; 0 in files of earlier versions.")
    begun_at_s: float
    ended_at_s: float | None = Field(description="Null: it is running, or was killed.")
    steps: Several[StepUse] = Field(default=(), description="Samples by sstat, where there is no slurmdbd.")


def specs_digest(job: ScaleJob) -> str:
    """Return the digest of a job's planned runs, without further repeats."""
    return canonical_sha256([run.hash for run in job.runs if run.repeat <= job.at_least])[:DIGITS]


def runs_of(job: ScaleJob) -> int:
    """Return the number of a job's planned runs, without the plain baseline, which many scripts cannot run."""
    return sum(not run.is_plain and run.repeat <= job.at_least for run in job.runs)


def job_files(results: Path) -> Iterator[tuple[str, JobFile]]:
    """Yield the name and the content of each job's file, except damaged ones."""
    for path in sorted((results / "jobs").glob("*/*.json")):
        if not _OF_A_SCALE.fullmatch(path.parent.name):
            continue
        with suppress(OSError, ValueError):
            yield path.stem, JobFile.from_json(read_json(path))


@contextmanager
def accounted(results: Path, job: ScaleJob, job_id: str, kind: Kind) -> Iterator[None]:
    """Account for the job that this process is. Nothing here fails it: a full disk costs its figures only."""
    file = JobFile(
        schema_version=1,
        kind=kind,
        stage=job.stage,
        scale=str(job.scale),
        in_allocation=_is_in_allocation(os.environ),
        job_id=job_id,
        nodes=job.scale.nodes,
        gpus=job.scale.world_size,
        cpus_per_node=job.cpus,
        memory_mb_per_node=job.memory_mb,
        runtime_min=job.runtime_min,
        runs_planned=runs_of(job) if kind == "measure" else 0,
        specs=specs_digest(job),
        runs_at_most=runs_of(job) * job.at_most // job.at_least if kind == "measure" else 0,
        begun_at_s=time.time(),
        ended_at_s=None,
    )
    path = _free_path(results / "jobs" / file.scale, job_id)
    _write(path, file)
    sampler = Sampler(lambda steps: _write(path, file.replace(steps=steps)), job_id) if job_id.isdecimal() else None
    try:
        yield
    finally:
        steps = sampler.stop() if sampler else ()
        _write(path, file.replace(ended_at_s=time.time(), steps=steps))


class Sampler:
    """A thread that asks sstat for the memory and CPU time of the job's steps. keep: called with the maxima so far."""

    def __init__(self, keep: Callable[[tuple[StepUse, ...]], None], job_id: str, ask: Ask = memory_of_steps) -> None:
        self._keep, self._job_id, self._ask = keep, job_id, ask
        self._steps: tuple[StepUse, ...] = ()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> tuple[StepUse, ...]:
        """End it; return the maxima."""
        self._done.set()
        self._thread.join(WITHIN_S)
        return self._steps

    def _sample(self) -> None:
        if self._done.wait(FIRST_SAMPLE_S) or not samples_are_needed():
            return
        while not self._done.is_set():
            found = self._ask(self._job_id)
            if found and not self._done.is_set():
                self._steps = with_maxima(self._steps, found)
                self._keep(self._steps)
            self._done.wait(SAMPLE_EVERY_S)


def _is_in_allocation(environment: Mapping[str, str]) -> bool:
    """Return True in a Slurm job that is not the ladder's own. In that, Snakemake removes the name, or it is ours."""
    name = environment.get("SLURM_JOB_NAME")
    return "SLURM_JOB_ID" in environment and name is not None and scale_of_name(name) is None


def _free_path(directory: Path, job_id: str) -> Path:
    """Return the job's file; a later start in the same allocation gets another name."""
    path, number = directory / f"{job_id}.json", 1
    while path.exists():
        number += 1
        path = directory / f"{job_id}.{number}.json"
    return path


def _write(path: Path, file: JobFile) -> None:
    with suppress(NotWritten, OSError):
        write_json(path, file.model_dump())
