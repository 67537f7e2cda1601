"""The forecasts of a climb: written by each gate for the stages above it, shown before they begin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ddp_ladder.analysis.forecast import device_of, forecast_lines, planned_forecasts, write_forecast
from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.climb.short_runtimes import short_runtimes
from ddp_ladder.common.files import NotWritten
from ddp_ladder.gates.verdict import Verdict, closed_variants
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.records.run_records import RunRecords


def after_gate(plan: Plan, gate: Verdict, runs: RunRecords) -> Iterator[str]:
    """Write the forecasts of the stages above a gate, and yield the lines on the stage that begins now.

    A stage below has to be measured first, but the gate's records say something of all stages above it. Nothing here
    keeps a gate from its verdict.
    """
    from ddp_ladder.analysis.forecast import make_forecast  # here: reading the Snakefile needs none of it

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


def doubts_about_runtimes(ladder: Ladder, stages: Sequence[str]) -> list[str]:
    """Return a warning for each stage whose jobs will not end in time."""
    config = str(ladder.settings.experiment.file)
    return [f"warning: {one}" for one in short_runtimes(ladder.plan, stages, ladder.to_do, ladder.runs, config)]


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
