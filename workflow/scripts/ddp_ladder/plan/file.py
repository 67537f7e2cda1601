"""The reader of plan.json: the inverse of ``Plan.to_json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from ddp_ladder.common.files import read_json
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.plan.plan import SCHEMA_VERSION, HangBounds, MonitorWanted, Plan, PreflightWanted, RunSpec, ScaleJob
from ddp_ladder.settings.keys import GateThresholds, Slurm
from ddp_ladder.settings.terms import Scale

REWRITE = "run `snakemake --cores 1 {path}`: the plan is written again from config/; then `snakemake report`"
OTHER_VERSION = (
    "make the report with the version of ddp-ladder that wrote it; or, to see which records this one can use, "
)


def read_plan(path: Path) -> Plan:
    """Read plan.json. Raises UserError, with the next step, if it is missing or invalid."""
    data, rewrite = None, REWRITE.format(path=quote(str(path)))
    try:
        data = read_json(path)
        return plan_from_json(data)
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
            Problem(str(path), f"the plan cannot be read: {error.strerror}", next=f"remove it, and {rewrite}")
        ) from error
    except ValueError as error:
        if isinstance(data, dict) and "jobs" in data:
            what, next_step = "this plan is of another version of ddp-ladder, or was edited", OTHER_VERSION + rewrite
        else:
            what, next_step = "this is not a valid plan", rewrite
        raise UserError(Problem(str(path), what, found=str(error), next=next_step)) from error


def plan_from_json(data: Any) -> Plan:
    """Build a plan from its JSON form. Raises ValueError that names what is invalid."""
    try:
        if data["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {data['schema_version']}, not {SCHEMA_VERSION}")
        jobs = tuple(job_from_json(job) for job in data["jobs"])
        gates = {stage: GateThresholds.model_validate(values) for stage, values in data["gates"].items()}
        return Plan(data["site"], data["results"], jobs, gates, tuple(data["may_differ"]))
    except KeyError as error:
        raise ValueError(f"the key {error} is missing") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error


def job_from_json(data: Mapping[str, Any]) -> ScaleJob:
    """Build a scale's job from its JSON form. Raises ValueError, KeyError or TypeError."""
    job = ScaleJob(
        stage=data["stage"],
        scale=Scale.parse(data["scale"]),
        runtime_min=data["runtime_min"],
        runs=tuple(_run(run) for run in data["runs"]),
        cpus=data["cpus"],
        memory_mb=data["memory_mb"],
        gres=data["gres"],
        slurm=Slurm(**{**data["slurm"], "extra": tuple(data["slurm"]["extra"])}),
        node_gpus=data["node_gpus"],
        max_log_mb_per_node=data["max_log_mb_per_node"],
        hang=data["hang"] and HangBounds.from_json(data["hang"]),
        monitor=data["monitor"] and MonitorWanted.from_json(data["monitor"]),
        preflight=PreflightWanted(**data["preflight"]),
        more=tuple(_run(run) for run in data["more"]),
        until_percent=data["until_percent"],
        jobs=data["jobs"],
    )
    for run in (*job.runs, *job.more):
        if (run.stage, run.scale) != (job.stage, job.scale):
            raise ValueError(f"the run {run.name} is in the job of {job.stage}, {job.scale}")
    return job


def _run(data: Mapping[str, Any]) -> RunSpec:
    run = RunSpec.from_json({key: value for key, value in data.items() if key != "spec_hash"})
    if run.hash != data["spec_hash"]:
        raise ValueError(f"the run {run.name} was edited: its spec_hash does not fit")
    return run
