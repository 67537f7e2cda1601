"""The forecasts of a climb: written by each gate for the stages above it, shown before they begin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.accounting.advice import NEARLY_USED, OR_LESS_TIME, runtime_for, whole_rows
from ddp_ladder.accounting.jobs import JobRow, read_or_warn
from ddp_ladder.analysis.forecast import (
    ScaleForecast,
    device_of,
    forecast_lines,
    make_forecast,
    planned_forecasts,
    write_forecast,
)
from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.common.files import NotWritten
from ddp_ladder.common.formats import count, duration
from ddp_ladder.common.messages import Problem
from ddp_ladder.gates.verdict import Verdict, closed_variants
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob
from ddp_ladder.records.run_records import RunRecords
from ddp_ladder.records.statistic import median


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
                str(job.scale): [one for one in job.runs if one.variant not in left_out and runs.kept(one) is None]
                for job in plan.stage_jobs(above[0])
            }
            yield from lines_before(plan, above[:1], to_do, runs.results)
            yield from (f"warning: {one}" for one in short_runtimes(plan, above[:1], to_do, runs, "config.yaml"))
    except NotWritten as error:
        yield f"warning: no forecast: {error.filename} cannot be written: {error.strerror}"
    except (OSError, ValueError) as error:
        yield f"warning: no forecast: {error}"


def doubts_about_runtimes(ladder: Ladder, stages: Sequence[str]) -> list[Problem]:
    """Return a problem for each stage whose jobs will not end in time."""
    config = str(ladder.settings.experiment.file)
    return short_runtimes(ladder.plan, stages, ladder.to_do, ladder.runs, config)


def forecast_text(ladder: Ladder, stages: Sequence[str]) -> str:
    """Return the forecasts of what a start has to measure, for a dry run; empty without one."""
    lines = [f"  {line}" for line in lines_before(ladder.plan, stages, ladder.to_do, Path(ladder.results))]
    return "\n".join(["\n", "What the scales below let expect:", *lines]) if lines else ""


def lines_before(
    plan: Plan, stages: Sequence[str], to_do: Mapping[str, Sequence[RunSpec]], results: Path
) -> Iterator[str]:
    """Yield a line for each series of these stages that is still to be measured and has a forecast."""
    device = device_of(plan)
    for job, forecast in planned_forecasts(results, plan):
        missing = {(run.variant, run.mode) for run in to_do.get(str(job.scale), ())}
        due = tuple(one for one in forecast.series if (one.variant, one.mode) in missing)
        if job.stage in stages and due:
            yield from forecast_lines(job, forecast.replace(series=due), device)


@dataclass(frozen=True)
class _Job:
    """What the missing runs of a scale will take, with the preflight. in_all_s: of all its runs."""

    job: ScaleJob
    runs: int
    needed_s: float
    in_all_s: float


def short_runtimes(
    plan: Plan, stages: Sequence[str], to_do: Mapping[str, Sequence[RunSpec]], runs: RunRecords, config: str
) -> list[Problem]:
    """Return a problem for each of the stages whose jobs need more than its runtime.

    to_do: by scale, the runs still to be measured. config: the file to change. A scale of which a whole job was
    measured is left to the advice of the accounting, which knows better.
    """
    waiting = [job for job in plan.jobs if job.stage in stages and to_do.get(str(job.scale))]
    forecasts = {one.scale: one for _, one in planned_forecasts(runs.results, plan)} if waiting else {}
    if not waiting:
        return []
    rows, _ = read_or_warn(runs.results)
    needed = [one for job in waiting if (one := _needed(job, to_do[str(job.scale)], forecasts, runs, rows))]
    return [problem for stage in stages for problem in _problem(stage, needed, config)]


def _needed(
    job: ScaleJob,
    missing: Sequence[RunSpec],
    forecasts: Mapping[str, ScaleForecast],
    runs: RunRecords,
    rows: Sequence[JobRow],
) -> _Job | None:
    forecast = forecasts.get(str(job.scale))
    if whole_rows(job, rows):
        return None
    shares = [job.share(spec) for spec in missing]
    missing = [spec for spec in missing if job.share(spec) == max(shares, key=shares.count)]  # the longest of the jobs
    further = [spec for spec in missing if not job.is_planned(spec)]
    times = {spec.name: _run_s(spec, job, forecast, runs) for spec in (*job.runs, *further) if not spec.is_plain}
    own = [_run_s(spec, job, forecast, runs) for spec in missing if not spec.is_plain]
    if not own or None in times.values():
        return None
    preflight_s = forecast.preflight_s if forecast else 0.0
    in_all_s = preflight_s + sum(time_s or 0.0 for time_s in times.values())
    return _Job(job, len(own), preflight_s + sum(time_s or 0.0 for time_s in own), in_all_s)


def _run_s(spec: RunSpec, job: ScaleJob, forecast: ScaleForecast | None, runs: RunRecords) -> float | None:
    """Return what a run took at this scale, or else will take by the forecast."""
    like = [one for one in job.runs if (one.variant, one.mode) == (spec.variant, spec.mode)]
    walls = [record.timing.wall_s for one in like if (record := runs.kept(one)) and record.timing]
    if walls:
        return median(walls)
    own = [one for one in forecast.series if (one.variant, one.mode) == (spec.variant, spec.mode)] if forecast else []
    return own[0].run_s if own else None


def _problem(stage: str, needed: Sequence[_Job], config: str) -> Iterator[Problem]:
    late = [one for one in needed if one.job.stage == stage and one.needed_s > NEARLY_USED * 60 * one.job.runtime_min]
    if not late:
        return
    worst = max(late, key=lambda one: one.needed_s)
    value = runtime_for(max(one.in_all_s for one in late) / 60)
    yield Problem(
        f"{config}: stages.{stage}.runtime",
        f"too short for {worst.job.scale}: {count(worst.runs, 'run')} will take about {duration(worst.needed_s)} with "
        "start-up and preflight, at the measured speed",
        found=f"{worst.job.runtime_min} min",
        next=f"set stages.{stage}.runtime: {value}, {OR_LESS_TIME}; a run that finds no time left is not started",
    )
