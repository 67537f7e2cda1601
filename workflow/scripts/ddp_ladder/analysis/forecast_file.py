"""The forecast of a stage, results/forecast/<stage>.json: written before the stage is measured, kept afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ddp_ladder.common.files import canonical_sha256, read_json, write_json
from ddp_ladder.common.model import Model, Several
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob
from ddp_ladder.settings.terms import Mode

SCHEMA_VERSION = 2
DIGITS = 10
Amount = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class SeriesForecast(Model):
    """What is predicted for a variant and mode at a scale. _low and _high: meant to hold nine of ten outcomes.

    None where it is not known; samples_per_s_bound, time and cost are then those without any further loss.
    """

    variant: str
    mode: Mode
    specs: str = Field(description="Digest of the runs that it is for: of other settings, it says nothing.")
    runs: Count
    measured: Several[str] = Field(min_length=1, description="Scales that it was made from, smallest first.")
    samples_per_s: Amount | None
    samples_per_s_low: Amount | None
    samples_per_s_high: Amount | None
    samples_per_s_bound: Amount | None = Field(description="Upper bound, where nothing better is known.")
    efficiency: Amount | None = Field(description="Per GPU, against the smallest measured scale.")
    efficiency_low: Amount | None
    efficiency_high: Amount | None
    step_time_s: Amount
    s_per_million_samples: Amount = Field(description="Time to solution.")
    gpu_hours_per_million_samples: Amount
    energy_j_per_sample: Amount | None = Field(description="Of the GPUs, at the power of the nearest measured scale.")
    run_s: Amount | None = Field(description="Of one run, with its start-up.")
    notes: Several[str]


class ScaleForecast(Model):
    """What is predicted for the job of a scale, with all planned runs of its series."""

    scale: str
    gpus: Count
    preflight_s: Amount
    job_s: Amount | None
    gpu_hours: Amount | None
    energy_kwh: Amount | None = Field(description="Of the GPUs, in the runs.")
    series: Several[SeriesForecast] = Field(min_length=1)


class Forecast(Model):
    """The forecast of a stage."""

    schema_version: Annotated[int, Field(ge=2, le=2, description="Version of this format.")]
    stage: str
    scales: Several[ScaleForecast] = Field(min_length=1)


def forecast_file(results: Path, stage: str) -> Path:
    """Return the path of a stage's forecast."""
    return results / "forecast" / f"{stage}.json"


def series_of_job(job: ScaleJob) -> dict[tuple[str, Mode], tuple[RunSpec, ...]]:
    """Return the planned runs of a job by variant and mode, without the plain baseline."""
    found: dict[tuple[str, Mode], list[RunSpec]] = {}
    for run in job.runs:
        if not run.is_plain:
            found.setdefault((run.variant, run.mode), []).append(run)
    return {key: tuple(runs) for key, runs in found.items()}


def specs_of(runs: Sequence[RunSpec]) -> str:
    """Return the digest of the runs of one series."""
    return canonical_sha256([run.hash for run in runs])[:DIGITS]


def read_forecast(results: Path, stage: str) -> Forecast | None:
    """Return the forecast of a stage; None without one of this form. Raises OSError, or ValueError naming the file."""
    file = forecast_file(results, stage)
    try:
        found = read_json(file)
        older = isinstance(found, dict) and found.get("schema_version") == 1 and "scales" in found
        return None if older else Forecast.from_json(found)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{file}: not a forecast: {error}") from None


def planned_forecasts(results: Path, plan: Plan) -> Iterator[tuple[ScaleJob, ScaleForecast]]:
    """Yield the forecasts of the plan's jobs, in its order, without series that the settings have changed since.

    A file that cannot be read is left out: the next gate writes it again.
    """
    for stage in plan.stages:
        try:
            found = read_forecast(results, stage)
        except (OSError, ValueError):
            continue
        by_scale = {one.scale: one for one in found.scales} if found else {}
        for job in plan.stage_jobs(stage):
            one = by_scale.get(str(job.scale))
            planned = {key: specs_of(runs) for key, runs in series_of_job(job).items()}
            valid = [each for each in one.series if planned.get((each.variant, each.mode)) == each.specs] if one else []
            if one and valid:
                yield job, one.replace(series=tuple(valid))


def write_forecast(results: Path, stage: str, forecast: Forecast | None) -> None:
    """Write the forecast of a stage, or delete it for None. Raises OSError (NotWritten)."""
    file = forecast_file(results, stage)
    if forecast is None:
        file.unlink(missing_ok=True)
    else:
        write_json(file, forecast.model_dump())
