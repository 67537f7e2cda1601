"""The training's processes: found below the agents, and their CPU time also after they ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from ddp_ladder.nodes.sampler import ProcessUse, TrainingProcesses, cpu_between


def use(own_s: float, waited_s: float = 0.0) -> ProcessUse:
    return ProcessUse(own_s, waited_s, rss_bytes=0)


BEFORE = {1: use(100.0), 2: use(5.0), 3: use(4.0, waited_s=1.0)}


@pytest.mark.parametrize(
    ("now", "cpu_s"),
    [
        ({1: use(110.0), 2: use(7.0), 3: use(4.0, 1.0), 4: use(1.5)}, 3.5),  # those that go on, and a new one
        ({1: use(100.0), 2: use(5.0, waited_s=5.5)}, 0.5),  # 3 ended with half a second more, as 2 knows
        ({1: use(100.0), 2: use(6.0)}, 1.0),  # 3 ended, and nobody waits for it: that takes nothing from 2
    ],
)
def test_the_cpu_time_between_two_samples(now: dict[int, ProcessUse], cpu_s: float) -> None:
    assert cpu_between(BEFORE, now, agents={1}) == pytest.approx(cpu_s)


BURN = """
import os, sys, time
if os.fork() == 0:
    while time.process_time() < 0.5: pass
    os._exit(0)
os.wait()
print(flush=True)
sys.stdin.readline()
"""


@contextmanager
def process(text: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-c", text, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    started.stdout.readline()
    try:
        yield started
    finally:
        started.communicate("\n")


def test_a_real_child_that_ended_between_two_samples() -> None:
    training = TrainingProcesses(os.getpid(), siblings=False)
    _, rss_bytes = training.sample()
    before = set(training.ours)
    with process(BURN) as burning:
        cpu_s, more_bytes = training.sample()
        assert training.ours == before | {burning.pid}
        assert more_bytes > rss_bytes
        # by its parent's clock, in steps of 10 ms; with what two Pythons need to start
        assert 0.4 <= cpu_s < 1.5
    training.sample()
    assert training.ours == before


STEP = """
import subprocess, sys
agent = '''import subprocess, sys
subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"])
input()'''
agents = [subprocess.Popen([sys.executable, "-c", agent]) for _ in range(2)]
print(agents[0].pid, flush=True)
for each in agents:
    each.wait()
"""


def test_all_agents_of_a_job_step_are_found_with_their_processes() -> None:
    """As srun starts them: children of one parent."""
    argv = [sys.executable, "-c", STEP]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as step:
        assert step.stdout is not None
        first = int("".join(step.stdout.readline() for _ in range(3)))  # empty lines: both trainings have started
        for siblings, number in ((True, 2), (False, 1)):
            training = TrainingProcesses(first, siblings)
            training.sample()
            assert (len(training.agents), len(training.ours)) == (number, number)
        step.communicate("\n" * 4)
