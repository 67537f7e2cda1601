"""The runs that a start has to measure: decided by the plan and the runs' raw files, and by nothing else.

No time stamp, parameter or metadata of an earlier start decides. A run is kept if its raw files give a good record of
exactly the spec that the settings give it now; every other run is measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from ddp_ladder.common.files import sha256
from ddp_ladder.gates.gate import judge
from ddp_ladder.gates.repeats import next_repeat
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob
from ddp_ladder.records.record import write_record
from ddp_ladder.records.run_records import RestoredRecords, RunRecords, as_made
from ddp_ladder.settings.terms import REFERENCE_VARIANT, Scale


def runs_to_do(plan: Plan, runs: RunRecords, several_jobs: bool = True) -> Mapping[str, tuple[RunSpec, ...]]:
    """Return the runs that have to be measured, by scale; without the scales of which every run is kept.

    several_jobs: False if this start makes one job of each scale at most, and so only the first one's repeats.
    """
    plan = as_made(plan, runs)
    to_do: dict[str, tuple[RunSpec, ...]] = {}
    for stage in plan.stages:
        # A variant that has yet to be measured below a gate is not judged yet.
        not_judged = {spec.variant for missing in to_do.values() for spec in missing}
        left_out = _left_out(plan, stage, runs) - not_judged
        missing_at = {
            str(job.scale): _missing(plan, job, runs, left_out, several_jobs) for job in plan.stage_jobs(stage)
        }
        to_do.update({scale: missing for scale, missing in missing_at.items() if missing})
    return to_do


def another_job(plan: Plan, runs: RunRecords, scale: Scale, ended: str) -> int | None:
    """Return which job a scale wants next, from 2; None if it wants none in this start.

    ended: the id of the job of this scale that has just ended well. It wants another one if that one measured runs, and
    the next repeats to be measured are the first ones of another job. So no job follows one that measured nothing, or
    whose time was up before its repeats were made.
    """
    plan = as_made(plan, runs)
    job = plan.job(scale)
    stopped, missing = _missing_of(job.runs, runs, _left_out(plan, job.stage, runs))
    due = () if missing else _further(plan, job, runs, stopped)
    if not due or job.share(due[0]) == 1:
        return None
    made = [(spec, record) for spec in job.runs if (record := runs.kept(spec))]
    is_begun = any(job.share(spec) == job.share(due[0]) for spec, _ in made)
    has_measured = any(record.job and record.job.id == ended for _, record in made)
    return job.share(due[0]) if has_measured and not is_begun else None


def _missing(
    plan: Plan, job: ScaleJob, runs: RunRecords, left_out: Collection[str], several_jobs: bool
) -> tuple[RunSpec, ...]:
    begun = {spec.name for spec in job.runs}
    of_others = [spec for spec in job.more if job.is_planned(spec) and spec.name not in begun] if several_jobs else []
    stopped, missing = _missing_of((*job.runs, *of_others), runs, left_out)
    if missing:
        return missing
    further = _further(plan, job, runs, stopped)
    return further if several_jobs or not further or job.share(further[0]) == 1 else ()


def _missing_of(
    specs: Iterable[RunSpec], runs: RunRecords, left_out: Collection[str]
) -> tuple[set[str], tuple[RunSpec, ...]]:
    """Return the variants that are not run any more, and those of the runs that have to be measured."""
    stopped, missing = set(left_out), []
    for spec in specs:
        record = runs.kept(spec)
        if record is None and spec.variant not in stopped:
            missing.append(spec)
        elif record is not None and record.failure is not None:
            stopped.add(spec.variant)  # as the job does: a plain baseline that fails is not tried for every repeat
    return stopped, tuple(missing)


def _further(plan: Plan, job: ScaleJob, runs: RunRecords, stopped: Collection[str]) -> tuple[RunSpec, ...]:
    """Return the next repeat that the figures of a scale need, if its job may make more; its job may make others."""
    if not job.more:
        return ()
    specs = (*plan.job(plan.first_scale).runs, *job.runs)
    return next_repeat(plan, job, {run.name: record for run in specs if (record := runs.kept(run))}, stopped)


def _left_out(plan: Plan, stage: str, runs: RunRecords) -> set[str]:
    """Return the variants that the gate before keeps out of a stage, as it is judged now."""
    before = plan.stage_before(stage)
    if before is None or all(spec.variant == REFERENCE_VARIANT for spec in plan.runs if spec.stage == stage):
        return set()
    verdict = judge(plan, before, runs.results, RestoredRecords(runs))
    return {name for name, word in verdict.variants.items() if word == "closed" and name != REFERENCE_VARIANT}


def restore_records(plan: Plan, runs: RunRecords) -> Iterator[Path]:
    """Write the records that are missing or disagree with their raw files, of scales without runs to measure.

    Yields the files that it has written.
    """
    to_do = runs_to_do(plan, runs, several_jobs=False)  # the records of one job are there before those of the next
    for job in as_made(plan, runs).jobs:
        for spec in () if str(job.scale) in to_do else job.runs:
            record, file = runs.kept(spec), runs.directory(spec).record
            if record is not None and not file.is_dir() and not runs.is_believed(spec):
                write_record(file, record)
                yield file


def runs_of_edited_scripts(plan: Plan, runs: RunRecords) -> list[RunSpec]:
    """Return the kept runs whose script has changed since."""
    now = {}
    for script in {spec.script for spec in plan.runs}:
        with contextlib.suppress(OSError):
            now[script] = sha256(Path(script).read_bytes())
    made = as_made(plan, runs).runs
    kept = [(spec, record) for spec in made if spec.script in now and (record := runs.kept(spec))]
    return [spec for spec, record in kept if record.fingerprint.get("script_sha256") not in (None, now[spec.script])]
