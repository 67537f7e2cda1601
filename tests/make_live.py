"""Write the files of a ladder that is climbing: a start, jobs that hold or await their scales, a run in its middle."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ddp_ladder.common.files import RunDirectory, write_json
from ddp_ladder.common.formats import NARROW_SPACE
from ddp_ladder.gates.gate import judge, write_verdict
from ddp_ladder.nodes.sampler import columns
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.slurm.jobs import SUBMITTED, JobEnd, write_job_end
from ddp_ladder.slurm.lock import START, Holder
from make_records import make_plan_of, make_specs
from make_runs import write_run
from rich.console import Console, RenderableType

START_LOCK = f"{START}.lock1"
RATE_OF_A_GPU = 1000.0


def climb_to(
    results: Path, scales: Sequence[str], running: str, *, repeats: int = 3, gpus: int = 0, slurm: bool = True
) -> Plan:
    """Write a ladder in the second run of ``running``; the scales before it are done, those after it wait in Slurm.

    gpus: per node, that the nodes' samples show.
    """
    plan = make_plan_of(make_specs(scales, repeats=repeats))
    write_json(results / "plan.json", plan.to_json())
    before = [job for job in plan.jobs if str(job.scale) in scales[: scales.index(running)]]
    for job in before:
        for spec in job.runs:
            write_run(results, spec, RATE_OF_A_GPU * spec.gpus * 0.95 ** (spec.gpus > 1))
    for stage in dict.fromkeys(job.stage for job in before):
        if all(job in before for job in plan.stage_jobs(stage)):
            write_verdict(judge(plan, stage, results), results / "gates")
    begin_run(results, plan, running, gpus, slurm)
    for number, job in enumerate(plan.jobs):
        if slurm and job not in before:
            write_job_end(results, JobEnd(str(100 + number), job.stage, str(job.scale), SUBMITTED, "a.log"))
    write_json(results / START_LOCK, asdict(Holder.here(START)))
    return plan


def begin_run(results: Path, plan: Plan, scale: str, gpus: int, slurm: bool) -> None:
    """Write the scale's first run as finished, and its second one in its middle, both of a job that holds the scale."""
    number, job = next((k, job) for k, job in enumerate(plan.jobs) if str(job.scale) == scale)
    own = str(100 + number) if slurm else "local-here"
    for spec in job.runs[:2]:
        run = write_run(results, spec, RATE_OF_A_GPU * spec.gpus)
        run.record.rename(run.assembled)  # the job writes its records at its end
        write_json(run.progress, progress_of(40))
    edit_job(run, own)
    run.ended.unlink()
    run.assembled.unlink()
    shutil.rmtree(run.ranks)
    for node_rank in range(spec.nodes):
        write_samples(run, node_rank, gpus, [time.time() - 4, time.time() - 1])
    lock = asdict(Holder.here(own))
    write_json(results / "jobs" / f"{scale}.lock1", lock)


def edit_job(run: RunDirectory, job_id: str) -> None:
    data = json.loads(run.run.read_text())
    data["job"]["id"] = job_id
    write_json(run.run, data)


def progress_of(step: int) -> dict[str, float]:
    return {"step": step, "samples_per_s": 1240.0, "elapsed_s": 6.0, "updated_at_s": time.time()}


def write_samples(run: RunDirectory, node_rank: int, gpus: int, times_s: Sequence[float]) -> None:
    """Write the samples of a node: CPUs at 25 %, the busiest at 50 %; each GPU at 92 % with 31 GB and 400 W."""
    names = columns(fabric=False, gpus=gpus)
    values = {"cpu_fraction": "0.25", "cpu_busiest_fraction": "0.5"}
    for index in range(gpus):
        figures = {"busy_fraction": "0.92", "memory_used_bytes": "31000000000", "power_w": "400"}
        values |= {f"gpu{index}_{name}": value for name, value in figures.items()}
    rows = [",".join({"time_s": f"{time_s:.3f}", **values}.get(name, "") for name in names) for time_s in times_s]
    run.samples(node_rank).write_text("".join(f"{line}\n" for line in (",".join(names), *rows)))


def on_one_line(picture: RenderableType, width: int) -> str:
    """The picture, each run of white space as one blank."""
    console = Console(width=width)
    with console.capture() as capture:
        console.print(picture)
    assert max(map(len, capture.get().splitlines())) <= width
    return " ".join(capture.get().replace(NARROW_SPACE, " ").split())


def run_of(results: Path, spec: RunSpec) -> RunDirectory:
    return RunDirectory(results / "runs" / spec.name)
