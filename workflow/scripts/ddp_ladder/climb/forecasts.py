"""The forecasts of a climb: written by each gate for the stages above it, shown before they begin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ddp_ladder.analysis.forecast import forecast_line, make_forecast, planned_forecasts, series_of_job, write_forecast
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.climb.to_do import witnesses_to_do
from ddp_ladder.common.files import NotWritten
from ddp_ladder.common.formats import count, duration
from ddp_ladder.common.messages import Problem
from ddp_ladder.gates.verdict import Verdict, closed_variants
from ddp_ladder.ledger.advice import NEARLY_USED, OR_LESS_TIME, runtime_for
from ddp_ladder.measuring.statistic import median
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.plan.witness import SHARE

ToDo = Mapping[str, Sequence[RunSpec]]  # by scale, the runs still to be measured


def after_gate(plan: Plan, gate: Verdict, runs: RunRecords) -> Iterator[str]:
    """Write the forecasts of the stages above a gate, and yield the lines on the stage that begins now.

    A stage below has to be measured first, but the gate's records say something of all stages above it. Nothing here
    keeps a gate from its verdict.
    """
    above = plan.stages[plan.stages.index(gate.stage) + 1 :]
    left_out = closed_variants(gate)
    try:
        for stage in above:
            write_forecast(runs.results, stage, make_forecast(plan, stage, runs, left_out, gate.is_open))
        if gate.is_open and above:
            to_do = {
                str(job.scale): [run for run in job.runs if run.variant not in left_out and runs.kept(run) is None]
                for job in plan.stage_jobs(above[0])
            }
            yield from lines_before(plan, above[:1], to_do, runs.results)
            yield from (f"warning: {short}" for short in short_runtimes(plan, above[:1], to_do, runs, "config.yaml"))
    except (OSError, ValueError) as error:
        what = f"{error.filename} cannot be written: {error.strerror}" if isinstance(error, NotWritten) else error
        yield f"warning: no forecast: {what}"


def forecast_text(plan: Plan, stages: Sequence[str], to_do: ToDo, results: Path) -> str:
    """Return the forecasts of what a start has to measure, for a dry run; empty without one."""
    lines = [f"  {line}" for line in lines_before(plan, stages, to_do, results)]
    return "\n".join(["\n", "What the scales below let expect:", *lines]) if lines else ""


def lines_before(plan: Plan, stages: Sequence[str], to_do: ToDo, results: Path) -> Iterator[str]:
    """Yield a line for each series of these stages that is still to be measured and has a forecast."""
    for job, forecast in planned_forecasts(results, plan):
        missing = {(run.variant, run.mode) for run in to_do.get(str(job.scale), ())}
        if job.stage in stages and (forecast.variant, forecast.mode) in missing:
            yield forecast_line(job, forecast, plan.hour_unit)


def short_runtimes(plan: Plan, stages: Sequence[str], to_do: ToDo, runs: RunRecords, config: str) -> list[Problem]:
    """Return a problem for each scale of these stages whose missing runs need more than the stage's runtime.

    A run takes as long as one of this scale took, or else as the forecast says. config: the file to change.
    """
    waiting = [job for job in plan.jobs if job.stage in stages and to_do.get(str(job.scale))]
    forecasts = planned_forecasts(runs.results, plan) if waiting else ()
    times_s = {(str(job.scale), run.variant, run.mode): run.run_s or 0.0 for job, run in forecasts}
    for job in waiting:
        for (variant, mode), specs in series_of_job(job).items():
            if took_s := [kept.timing.wall_s for spec in specs if (kept := runs.kept(spec)) and kept.timing]:
                times_s[str(job.scale), variant, mode] = median(took_s)
    problems = []
    for job in waiting:
        missing = [spec for spec in to_do[str(job.scale)] if not spec.is_plain]
        needed_s = sum(times_s.get((str(job.scale), spec.variant, spec.mode), 0.0) for spec in missing)
        if needed_s and job.witness is not None:
            followed_s = min(job.witness.seconds, SHARE * 60 * job.runtime_min)
            needed_s += followed_s * len(witnesses_to_do(plan, to_do, runs.results))
        if needed_s > NEARLY_USED * 60 * job.runtime_min:
            key = f"stages.{job.stage}.runtime"
            what = f"too short for {job.scale}: {count(len(missing), 'run')} will take about {duration(needed_s)}"
            what = f"{what} with start-up, at the measured speed"
            advice = f"set {key}: {runtime_for(needed_s / 60)}, {OR_LESS_TIME}"
            advice = f"{advice}; a run that finds no time left is not started"
            problems.append(Problem(f"{config}: {key}", what, f"{job.runtime_min} min", next=advice))
    return problems
