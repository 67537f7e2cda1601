"""A process that is a scale's job: its nodes, its time, and the lock of its scale."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.run.interruption import raise_on_signals
from ddp_ladder.run.job import END_S, Context
from ddp_ladder.run.nodes import Allocation, nodes_of
from ddp_ladder.run.progress import RunConsole
from ddp_ladder.slurm.allocation import time_left_s
from ddp_ladder.slurm.lock import Lock, held

# Before Slurm ends the job, it has to end its agents, which may take all of END_S, join the logs and write the records,
# which takes long on a slow file system.
WRITING_S = 20
MARGIN_S = END_S + WRITING_S


def limits_s(runtime_s: float, slurm_s: float | None) -> tuple[float, float]:
    """Return the time for the scale's runs, and the time for agents to end after SIGTERM.

    slurm_s: until Slurm ends the job; None if it does not. If that is short, half of it is for the runs.
    """
    if slurm_s is None:
        return runtime_s, END_S
    margin_s = min(MARGIN_S, slurm_s / 2)
    return min(runtime_s, slurm_s - margin_s), END_S * margin_s / MARGIN_S


def context_of(job: ScaleJob, results: Path) -> Context:
    """Return the nodes and the limits of the job that this process is."""
    nodes = nodes_of(os.environ, job)
    runtime_s, slurm_s = 60.0 * job.runtime_min, None
    if isinstance(nodes, Allocation):
        # Asked now: in an allocation some of its time is over.
        slurm_s = time_left_s(nodes.job_id, time.monotonic() + runtime_s / 2)
    runs_s, end_s = limits_s(runtime_s, slurm_s)
    deadline_s = time.monotonic() + runs_s
    if isinstance(nodes, Allocation):
        nodes = replace(nodes, until_s=deadline_s)
    return Context(job, results, nodes, deadline_s, RunConsole(len(job.runs)), end_s)


@contextmanager
def holding_scale(context: Context) -> Iterator[None]:
    """Hold the lock of the scale; signals raise Interrupted."""
    raise_on_signals()
    lock = Lock.of_scale(context.results, str(context.job.scale), context.label)
    with held(lock, context.nodes.job_id, context.console.say, lost=lambda: _lose(context)):
        yield


def _lose(context: Context) -> None:
    """End this job: another one has taken over its runs, because this one showed no sign of life for long."""
    context.console.say(f"{context.label}: another job has taken these runs over")
    os.kill(os.getpid(), signal.SIGTERM)
