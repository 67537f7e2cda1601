"""The job of a link, which runs the script once, from where it has saved its state; and that of a rehearsal."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace

from ddp_ladder.common.files import RunDirectory
from ddp_ladder.common.formats import duration
from ddp_ladder.records.raw_files import RawRun, read_raw_run
from ddp_ladder.records.record import Failure, Record, write_record
from ddp_ladder.run.assembling import Assembly
from ddp_ladder.run.job import Context, RunsSoFar, failed_preflight, leave_out_run, run_on_free_port
from ddp_ladder.settings.keys import Preflight
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


# --- The job of a rehearsal: the script twice, each time until it is told that its time is nearly up.


def run_twice(context: Context, each_s: float, warn_before_s: float) -> tuple[RawRun, RawRun] | Failure:
    """Run the script twice; return the raw files of both starts, or why one was not started. Raises Interrupted.

    each_s: until the signal; warn_before_s: from there to the end. What an earlier rehearsal left is deleted: the first
    start has no state.
    """
    directory = context.directory(context.job.runs[0])
    shutil.rmtree(directory.path, ignore_errors=True)
    if failed := failed_preflight(context):  # once, and not within the time of a start
        return Failure(verdict="not run", why=failed.why, next=failed.next)
    context = replace(context, job=replace(context.job, preflight=Preflight(enabled=False)))
    context.console.expect(1)  # a second start
    for _ in range(2):
        deadline_s = min(context.deadline_s, time.monotonic() + each_s + warn_before_s)
        record = run_link(replace(context, deadline_s=deadline_s), warn_before_s)
        if record.job is None and record.failure is not None:
            return record.failure
    earlier = max(directory.attempts.iterdir(), key=lambda path: int(path.name))  # others found their port taken
    return read_raw_run(RunDirectory(earlier)), read_raw_run(directory)
