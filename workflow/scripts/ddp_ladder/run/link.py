"""A link of a chain: one job, which runs the script once, from where it has saved its state."""

from __future__ import annotations

from dataclasses import replace

from ddp_ladder.common.formats import duration
from ddp_ladder.records.record import Record, write_record
from ddp_ladder.run.assembling import Assembly
from ddp_ladder.run.job import Context, RunsSoFar, failed_preflight, leave_out_run, run_on_free_port
from ddp_ladder.settings.terms import runtime_key


def run_link(context: Context, warn_before_s: float) -> Record:
    """Run the script, with SIGUSR1 so long before the job's time is up; return its record. Raises Interrupted.

    Of a run that ended, the record as assembled stays beside its raw files: the next link moves both.
    """
    context = replace(context, warn_before_s=warn_before_s)
    (spec,) = context.job.runs
    directory = context.directory(spec)
    directory.record.unlink(missing_ok=True)  # of the link before: this one may be killed before it has its own
    failed = failed_preflight(context)
    if failed is not None:
        record = leave_out_run(directory, spec, "preflight failed", failed.why, failed.next)
    elif context.left_s <= warn_before_s:
        left, signal = duration(max(0.0, context.left_s)), duration(warn_before_s)
        why = f"when the script could start, the job had {left} left, and the signal comes {signal} before its end"
        longer = f"raise {runtime_key(spec.stage)}, or lower production.warn_before_s"
        record = leave_out_run(directory, spec, "no time", why, longer)
    else:
        runs = RunsSoFar(context.console, {}, {})
        made = run_on_free_port(context, directory, spec, runs)
        runs.add(made)
        runs.settle()
        record = made.record if isinstance(made, Assembly) else made
    write_record(directory.record, record)
    return record
