"""The finding of a preflight that kept the runs of a scale from starting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddp_ladder.gates.file import Finding
from ddp_ladder.plan.plan import Plan, ScaleJob
from ddp_ladder.preflight.assemble import believed
from ddp_ladder.preflight.finding import PREFLIGHT_FAILED
from ddp_ladder.records.run_records import RunRecords
from ddp_ladder.settings.terms import REFERENCE_VARIANT


def preflight_findings(plan: Plan, stage: str, runs: RunRecords) -> Iterator[Finding]:
    """Yield a finding for each scale of a stage whose runs were left out because its preflight failed.

    A preflight counts only for the runs that it left out: those that were made are judged by their own records, also if
    a later preflight of their scale failed, or was switched off, or if its files were deleted.
    """
    for job in plan.stage_jobs(stage):
        if not _left_out(job, runs):
            continue
        try:
            result = believed(runs.results, job.scale)
        except (OSError, ValueError):
            continue  # the runs' own records say why they were left out
        failure = result and result.failure
        if failure:
            place = (REFERENCE_VARIANT, job.runs[0].mode, str(job.scale), None)
            finding = Finding(*place, PREFLIGHT_FAILED, False, failure.in_words, failure.wanted, failure.next)
            yield replace(finding, place=failure.node or str(job.scale))


def _left_out(job: ScaleJob, runs: RunRecords) -> bool:
    """Return True if the record of a run says that a preflight left it out."""
    for spec in job.runs:
        try:
            failure = runs.believed(spec).failure
        except (OSError, ValueError):
            continue
        if failure is not None and failure.why.startswith(PREFLIGHT_FAILED):
            return True
    return False
