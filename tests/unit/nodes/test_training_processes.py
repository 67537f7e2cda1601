"""The training's processes: found below the agents, and their CPU time also after they ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ddp_ladder.nodes.processes import Stat, TrainingProcesses, cpu_between, descendants, parse_stat

# a process with a hostile name on Linux 6.18
STAT = (
    "4242 (a) R 1 (b) S 4100 4242 4100 34816 4242 4194304 9133 21077 0 3 250 50 700 100 20 0 17 0 1719293 "
    "172216320 2560 18446744073709551615 1 1 0 0 0 0 0 16781312 16387 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)


def test_a_stat_with_spaces_and_parentheses_in_the_name() -> None:
    assert parse_stat(STAT) == Stat(parent=4100, own_s=3.0, waited_s=8.0, threads=17, rss_bytes=2560 * 4096)


def test_descendants() -> None:
    parents = {2: 1, 3: 2, 4: 3, 5: 9, 9: 5, 10: 0}
    assert descendants({1}, parents) == {2, 3, 4}


def stat(own_s: float, waited_s: float = 0.0, parent: int = 1) -> Stat:
    return Stat(parent, own_s, waited_s, threads=1, rss_bytes=0)


def test_cpu_time_of_processes_that_go_on_and_new_ones() -> None:
    before = {1: stat(100.0), 2: stat(5.0)}
    assert cpu_between(before, {1: stat(110.0), 2: stat(7.0), 3: stat(1.5)}, agents={1}) == pytest.approx(3.5)


def test_cpu_time_of_a_child_that_ended_is_counted_once() -> None:
    before = {1: stat(0.0), 2: stat(5.0), 3: stat(4.0, waited_s=1.0, parent=2)}
    now = {1: stat(0.0), 2: stat(5.0, waited_s=5.5)}  # 3 had half a second more, as 2 knows
    assert cpu_between(before, now, agents={1}) == pytest.approx(0.5)


def test_cpu_time_of_a_child_that_its_parent_does_not_wait_for_takes_nothing_from_the_others() -> None:
    before = {1: stat(0.0), 2: stat(5.0), 3: stat(40.0)}
    assert cpu_between(before, {1: stat(0.0), 2: stat(6.0)}, agents={1}) == pytest.approx(1.0)


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
    before = training.sample()
    with process(BURN):
        sample = training.sample()
        assert sample.processes == before.processes + 1
        assert sample.threads > before.threads
        assert sample.rss_bytes > before.rss_bytes
        # by its parent's clock, in steps of 10 ms; with what two Pythons need to start
        assert 0.4 <= sample.cpu_s < 1.5
    assert training.sample().processes == before.processes


MAP = """
import mmap, sys
with open(sys.argv[1]) as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
touched = sum(mapped[::4096])
print(flush=True)
sys.stdin.readline()
kept = b"x" * 50_000_000
print(flush=True)
sys.stdin.readline()
"""


def test_a_mapped_file_is_resident_and_not_private(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(50_000_000))
    training = TrainingProcesses(os.getpid(), siblings=False)
    before = training.sample()
    with process(MAP, str(tmp_path / "data")) as mapping:
        mapped = training.sample()
        assert mapping.stdin is not None
        assert mapping.stdout is not None
        mapping.stdin.write("\n")
        mapping.stdin.flush()
        mapping.stdout.readline()
        kept = training.sample()
    assert mapped.rss_bytes - before.rss_bytes > 50_000_000
    assert mapped.private_bytes - before.private_bytes < 40_000_000
    assert kept.private_bytes - mapped.private_bytes == pytest.approx(50_000_000, rel=0.1)


AGENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; print(flush=True); sys.stdin.readline()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(flush=True)
sys.stdin.readline()
child.communicate("\\n")
"""


def test_agents_of_the_same_run_on_the_node_are_found_and_others_not() -> None:
    """As srun starts them: children of one parent with one command line. A simulated node has another one."""
    with process(AGENT, "--run", "r1") as first:
        training = TrainingProcesses(first.pid, siblings=True)
        assert training.sample().processes == 1
        with process(AGENT, "--run", "r1") as second, process(AGENT, "--run", "r2"):
            assert training.sample().processes == 2
            assert training.agents == {first.pid, second.pid}
        assert training.sample().processes == 1


def test_an_agent_that_is_alone_has_no_siblings() -> None:
    with process(AGENT, "--run", "r1") as first, process(AGENT, "--run", "r1"):
        assert TrainingProcesses(first.pid, siblings=False).sample().processes == 1
