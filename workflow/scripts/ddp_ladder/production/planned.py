"""What was planned before production: the milestones of the application, kept for the final report."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pydantic import Field

from ddp_ladder.common.files import read_json, write_json
from ddp_ladder.common.model import Amount, Model, Positive, Several, Version1
from ddp_ladder.ledger.jobs import job_files
from ddp_ladder.plan.plan import Hours
from ddp_ladder.production.chain import chain_directory

FILE = "report/planned.json"


class PlannedTraining(Model):
    """The project's trainings at one scale: a milestone of the application."""

    run_type: str
    mode: str
    scale: str
    nodes: Positive
    gpus: Positive
    hours: Amount  # of one training, without the reserve
    samples: Amount  # of one training
    samples_per_s: Amount | None
    gpu_energy_kwh: Amount | None  # of one training; None: the GPUs do not report it
    runs: Positive | None  # trainings; None: not said
    reserve: Amount  # on their hours, a fraction

    @property
    def of_one(self) -> Hours:
        """Return the hours of one training with its reserve."""
        return self._held.asked(1, self.reserve)

    @property
    def of_all(self) -> Hours:
        """Return the hours that the application asks for."""
        return self._held.asked(self.runs, self.reserve)

    @property
    def _held(self) -> Hours:
        return Hours.held(self.hours, self.nodes, self.gpus)


class Planned(Model):
    """The milestones (report/planned.json)."""

    schema_version: Version1 = 1
    written_on: str
    trainings: Several[PlannedTraining] = Field(min_length=1)

    def training(self, scale: str, mode: str) -> PlannedTraining | None:
        """Return the one of this scale and mode; None if the application has none."""
        return next((each for each in self.trainings if (each.scale, each.mode) == (scale, mode)), None)


def keep_planned(results: Path, planned: Planned) -> None:
    """Keep the milestones, unless production has begun: a plan that is made later is none. Raises NotWritten."""
    if not any(job_files(chain_directory(results))):
        write_json(results / FILE, planned.model_dump())


def read_planned(results: Path) -> Planned | None:
    """Read the milestones; None if none were kept before production, or they cannot be read."""
    with suppress(OSError, ValueError):
        return Planned.from_json(read_json(results / FILE))
    return None
