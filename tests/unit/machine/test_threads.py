"""The threads of ranks, from /proc of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ddp_ladder.machine.threads import RankThreads, Thread, affinity_text, rank_threads
from ddp_ladder.node.numa import cpus_text

RANK = """\
import os, sys, threading
cpus = sorted(os.sched_getaffinity(0))
ready, done = threading.Event(), threading.Event()
def bound():
    os.sched_setaffinity(0, cpus[:1])
    ready.set()
    done.wait()
threading.Thread(target=bound, daemon=True).start()
ready.wait()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "DDP_LADDER_RUN": str(tmp_path / "run.json"), "RANK": "3"}
    with subprocess.Popen(
        [sys.executable, "-c", RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_rank_with_a_thread_that_is_bound_to_one_cpu(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    allowed = cpus_text(os.sched_getaffinity(0))
    found = rank_threads(3, 1, rank.pid, 7, tmp_path / "run.json")
    assert found is not None
    assert found.threads[0].tid == found.pid == rank.pid
    assert [thread.cpus for thread in found.threads] == [allowed, str(min(os.sched_getaffinity(0)))]
    summary = found.summary()
    assert (summary.rank, summary.node_rank, summary.steps, summary.cpus, summary.threads) == (3, 1, 7, allowed, 2)


@pytest.mark.parametrize(("number", "run"), [(2, "run.json"), (3, "other.json")])
def test_a_process_of_another_rank_or_run_is_not_taken_for_it(
    rank: subprocess.Popen[str], tmp_path: Path, number: int, run: str
) -> None:
    assert rank_threads(number, 0, rank.pid, 7, tmp_path / run) is None


def test_made_proc_of_a_rank_in_a_container_with_process_ids_of_its_own(tmp_path: Path) -> None:
    process = tmp_path / "4242"
    (process / "task/4242").mkdir(parents=True)
    status = "Name:\tpython\nNSpid:\t4242\t12\nCpus_allowed_list:\t0-3\nMems_allowed_list:\t0\n"
    for path in (process, process / "task/4242"):
        (path / "status").write_text(status)
    (process / "environ").write_bytes(b"DDP_LADDER_RUN=/r/run.json\0RANK=0\0")
    found = rank_threads(0, 0, 12, 3, Path("/r/run.json"), tmp_path)
    assert found == RankThreads(0, 0, 4242, 3, (Thread(4242, "python", "0-3"),), "0")


def test_the_text_is_a_line_per_thread() -> None:
    ranks = [RankThreads(1, 0, 20, 3, (Thread(20, "python", "0-3"), Thread(25, "pt_autograd_0", "2")))]
    assert affinity_text("default/weak/1x2/r1", "node1", ranks).splitlines() == [
        "Threads of the ranks of default/weak/1x2/r1 on node1, and the CPUs that each may use",
        "rank 1: pid 20 tid 20 thread 0 bound to OS proc set {0-3}  python",
        "rank 1: pid 20 tid 25 thread 1 bound to OS proc set {2}  pt_autograd_0",
    ]
