"""The reader of plan.json: the inverse of ``Plan.to_json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddp_ladder.common.files import read_json
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.plan.plan import SCHEMA_VERSION, Plan, RunSpec, ScaleJob
from ddp_ladder.settings.cluster_keys import Slurm
from ddp_ladder.settings.config_keys import GateThresholds
from ddp_ladder.settings.terms import Scale

REWRITE_ADVICE = "delete it and run `snakemake report`: the plan is written again from config/"


def read_plan(path: Path) -> Plan:
    """Read plan.json. Raises UserError, with the next step, if it is missing or invalid."""
    try:
        return plan_from_json(read_json(path))
    except FileNotFoundError:
        raise UserError(
            Problem(
                str(path),
                "there is no plan here",
                next="run `snakemake --cores all` first, or name the results with --results",
            )
        ) from None
    except OSError as error:
        raise UserError(
            Problem(str(path), f"the plan cannot be read: {error.strerror}", next=REWRITE_ADVICE)
        ) from error
    except ValueError as error:
        raise UserError(
            Problem(str(path), "this is not a valid plan", found=str(error), next=REWRITE_ADVICE)
        ) from error


def plan_from_json(data: Any) -> Plan:
    """Build a plan from its JSON form. Raises ValueError that names what is invalid."""
    try:
        if data["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {data['schema_version']}, not {SCHEMA_VERSION}")
        jobs = tuple(_job(job) for job in data["jobs"])
        gates = {stage: GateThresholds.model_validate(values) for stage, values in data["gates"].items()}
        return Plan(data["site"], data["results"], jobs, gates, tuple(data["may_differ"]))
    except KeyError as error:
        raise ValueError(f"the key {error} is missing") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error


def _job(data: Mapping[str, Any]) -> ScaleJob:
    job = ScaleJob(
        stage=data["stage"],
        scale=Scale.parse(data["scale"]),
        runtime_min=data["runtime_min"],
        runs=tuple(_run(run) for run in data["runs"]),
        cpus=data["cpus"],
        memory_mb=data["memory_mb"],
        gres=data["gres"],
        slurm=Slurm(**{**data["slurm"], "extra": tuple(data["slurm"]["extra"])}),
    )
    for run in job.runs:
        if (run.stage, run.scale) != (job.stage, job.scale):
            raise ValueError(f"the run {run.name} is in the job of {job.stage}, {job.scale}")
    return job


def _run(data: Mapping[str, Any]) -> RunSpec:
    run = RunSpec.from_json({key: value for key, value in data.items() if key != "spec_hash"})
    if run.hash != data["spec_hash"]:
        raise ValueError(f"the run {run.name} was edited: its spec_hash does not fit")
    return run
