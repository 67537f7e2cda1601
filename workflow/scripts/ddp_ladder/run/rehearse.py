"""The job of a rehearsal: the script twice, each time until it is told that its time is nearly up."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace

from ddp_ladder.common.files import RunDirectory
from ddp_ladder.records.raw_files import RawRun, read_raw_run
from ddp_ladder.records.record import Failure
from ddp_ladder.run.job import Context, failed_preflight
from ddp_ladder.run.link import run_link
from ddp_ladder.settings.keys import Preflight


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
