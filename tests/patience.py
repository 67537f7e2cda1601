"""How long a test waits for processes: while they compute, so that none fails for a busy machine alone."""

from __future__ import annotations

import contextlib
import subprocess
import time

import psutil
import pytest

SILENT_S = 120.0
LEAST_CPU_S = 3.0  # in SILENT_S, of processes that are at work; an agent that waits uses less


class Patience:
    """With processes, and those below them."""

    def __init__(self, *pids: int | None) -> None:
        self._pids = pids
        self._used_s, self._looked_at_s = self._cpu_s(), time.monotonic()

    @property
    def is_over(self) -> bool:
        """Return True once they have neither ended nor computed for SILENT_S."""
        if time.monotonic() - self._looked_at_s < SILENT_S:
            return False
        before_s, self._used_s, self._looked_at_s = self._used_s, self._cpu_s(), time.monotonic()
        return self._used_s < before_s + LEAST_CPU_S

    def _cpu_s(self) -> float:
        """Return their CPU time, and that of their children, also of those that have ended."""
        used_s = 0.0
        for pid in self._pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                for each in (process, *process.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        used_s += sum(each.cpu_times()[:4])
        return used_s


def outputs_of(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait until a process has ended; return what it wrote."""
    patience = Patience(process.pid)
    while not patience.is_over:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=1)
    pytest.fail(f"it neither ended nor computed for {SILENT_S:g} s")
