"""Ranks under strace go on, and ranks that a debugger holds are stopped: with a real tracer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from ddp_ladder.records.raw_models import HeartbeatHeader
from ddp_ladder.run import hangs

# As strace does, it lets its child go on after each stop, until it gets a signal.
TRACER = """
import ctypes, itertools, os, signal
TRACEME, SYSCALL = 0, 24
ptrace = ctypes.CDLL(None).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
child = os.fork()
if not child:
    ptrace(TRACEME, 0, None, None)
    os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        os.getppid()
holds = False
def hold(number, frame):
    global holds
    holds = True
signal.signal(signal.SIGUSR1, hold)
os.waitpid(child, 0)
print(child, flush=True)
while not holds:
    ptrace(SYSCALL, child, None, None)
    os.waitpid(child, 0)
print("holds", flush=True)
signal.pause()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ptrace is Linux's")
def test_a_traced_rank_is_stopped_only_while_its_tracer_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "TRACED_S", 0.5)
    with subprocess.Popen([sys.executable, "-c", TRACER], stdout=subprocess.PIPE) as tracer:
        assert tracer.stdout is not None
        pid = int(tracer.stdout.readline())
        beat = HeartbeatHeader(
            pid=pid,
            signal=None,
            phase="training",
            steps=1,
            step_s=1,
            moved_monotonic_s=0,
            written_monotonic_s=0,
            sequence=None,
        )
        try:
            assert {hangs.find_process(beat) for _ in range(5)} == {("alive", pid)}
            tracer.send_signal(signal.SIGUSR1)
            assert tracer.stdout.readline() == b"holds\n"
            assert hangs.find_process(beat) == ("stopped", pid)
        finally:
            tracer.kill()
            os.kill(pid, signal.SIGKILL)
