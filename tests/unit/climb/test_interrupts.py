"""SIGTERM to a job's Snakemake. That to a climb is tested in tests/workflow/test_climb_cut_short.py."""

from __future__ import annotations

import signal
import threading

from ddp_ladder.climb.snakemake import take_sigterm_in_a_thread
from snakemake.scheduling.job_scheduler import JobScheduler


def test_sigterm_at_the_end_of_a_child_does_not_let_snakemake_wait_for_itself() -> None:
    class Scheduler(JobScheduler):
        def __init__(self) -> None:
            self._lock = threading.RLock()
            self._open_jobs = threading.Semaphore(0)

    take_sigterm_in_a_thread(Scheduler)
    scheduler = Scheduler()
    with scheduler._open_jobs._cond:  # as the main thread, which wakes because the child has ended
        scheduler.exit_gracefully(signal.SIGTERM, None)
    assert scheduler._open_jobs.acquire(timeout=10)
    assert scheduler._user_kill == "graceful"
