"""The state of a scale's job in words. Pure."""

from __future__ import annotations

from typing import Literal

from ddp_ladder.common.formats import count, duration, stage_name
from ddp_ladder.live.state import LadderState, QueuedJob, ScaleState
from ddp_ladder.records.record import placed
from ddp_ladder.slurm.states import ENDED_WELL, reason_in_words

Mood = Literal["good", "bad", "busy", "waits", "plain"]


def job_words(state: LadderState, scale: ScaleState, times: bool = True) -> tuple[str, Mood]:
    """Return the words, and how they are meant. times: with those that change from one look to the next."""
    failed = [run for run in scale.runs if run.has_failed and not run.spec.is_plain]
    if scale.is_done and not scale.is_held:
        if not failed:
            return "finished", "good"
        return f"{count(len(failed), 'run')} failed", "bad"
    if scale.bad_end is not None:
        return scale.bad_end.in_words, "bad"
    if scale.slurm_id is not None:
        return _slurm_words(state, scale, scale.slurm_id, times)
    if scale.is_held and scale.holder is not None:
        process = scale.holder.process
        return f"runs: process {process.pid} on {process.host}{_preflight(scale)}", "busy"
    return _why_not(state, scale), "plain"


def _slurm_words(state: LadderState, scale: ScaleState, job_id: str, times: bool) -> tuple[str, Mood]:
    job = state.slurm.knows(job_id)
    if job is None:
        if scale.is_held:
            return f"job {job_id} runs{_preflight(scale)}", "busy"
        if state.slurm.asked_s is None or state.slurm.problem:
            return f"job {job_id} was submitted", "waits"
        return f"job {job_id}: Slurm does not know it (any more)", "plain"
    if job.state.phase == "waiting":
        return _waiting(job_id, job), "waits"
    if job.state.phase == "running":
        return f"job {job_id} runs{_spent(job) if times else ''} on {job.state.nodes}{_preflight(scale)}", "busy"
    if job.state.state == ENDED_WELL:
        return f"job {job_id} has ended", "plain"
    return f"job {job_id} ended {job.state.state}", "bad"


def _waiting(job_id: str, job: QueuedJob) -> str:
    why = f": {reason_in_words(job.state.reason, job_id)}" if job.state.reason else ""
    start = f"; expected to start {job.state.start.replace('T', ' ').removesuffix(':00')}" if job.state.start else ""
    return f"job {job_id} waits{why}{start}"


def _spent(job: QueuedJob) -> str:
    if job.elapsed_s is None:
        return ""
    limit = "" if job.limit_s is None else f" of {duration(job.limit_s)}"
    return f" {duration(job.elapsed_s)}{limit}"


def _preflight(scale: ScaleState) -> str:
    """Return what a job does that has not begun a run."""
    if scale.running is not None:
        return ""
    if scale.is_done:
        return ", writing its records"
    wanted = scale.job.preflight.enabled and not scale.ended
    return ", in its preflight" if wanted else ", between two runs" if scale.ended else ", starting"


def _why_not(state: LadderState, scale: ScaleState) -> str:
    assert state.plan is not None
    interrupted = [run for run in scale.runs if run.phase == "interrupted"]
    if interrupted:
        return f"interrupted in {interrupted[0].spec.name}"
    before = state.plan.stage_before(scale.job.stage)
    if not state.is_at_work:
        return "not run"
    if before is None or (before in state.gates and state.gates[before].is_open):
        return "to come"
    return f"waits for the gate of {stage_name(before)}"


def failure_words(scale: ScaleState) -> list[tuple[str, str]]:
    """Return each failed run's name with its failure; runs that were left out because of another are not listed."""
    found = []
    for run in scale.runs:
        failure = None if run.record is None or run.record.job is None else run.record.failure
        if failure is not None and not run.spec.is_plain:
            found.append((run.spec.name, f"{placed(failure.verdict, failure.place, failure.why)}: {failure.why}"))
    return found
