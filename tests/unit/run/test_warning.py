"""The warning that the time is nearly up, among real processes: it reaches ranks with a handler, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ddp_ladder.run.interruption import TimedWarning

# Writes the signals that it got to a file; its child, as a worker of a loader, has the same handler.
RANK = """
import os, signal, sys, time
def note(*_):
    with open(sys.argv[1], "a") as file:
        file.write(f"{'worker' if os.getpid() != own else 'rank'}\\n")
own = os.getpid()
if sys.argv[2] == "handles":
    signal.signal(signal.SIGUSR1, note)
os.fork()
open(f"{sys.argv[1]}.ready{os.getpid()}", "w").close()
time.sleep(60)
"""


def start(tmp_path: Path, name: str, how: str, *wrapper: str, rank: bool = True) -> subprocess.Popen[bytes]:
    env = {**os.environ, **({"RANK": "0"} if rank else {})}
    argv = [*wrapper, sys.executable, "-c", RANK, str(tmp_path / name), how]
    return subprocess.Popen(argv, env=env, start_new_session=True)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    processes = {
        "rank": start(tmp_path, "rank", "handles"),
        "wrapped": start(tmp_path, "wrapped", "handles", "sh", "-c", '"$@"; :', "sh"),
        "deaf": start(tmp_path, "deaf", "ignores"),
        "launcher": start(tmp_path, "launcher", "handles", rank=False),
    }
    until_s = time.monotonic() + 30
    while len(list(tmp_path.glob("*.ready*"))) < 2 * len(processes):
        assert time.monotonic() < until_s
        time.sleep(0.05)
    yield processes
    for process in processes.values():
        os.killpg(process.pid, 9)
        process.wait()


def test_ranks_with_a_handler_are_warned_and_neither_their_workers_nor_launchers_nor_ranks_without(
    started: dict[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    warning = TimedWarning(time.time() + 0.2)
    warning.start()
    until_s = time.monotonic() + 30
    while warning.warned != 2 or not ((tmp_path / "rank").exists() and (tmp_path / "wrapped").exists()):
        assert time.monotonic() < until_s
        time.sleep(0.05)
    assert {name: (tmp_path / name).read_text() for name in ("rank", "wrapped")} == dict.fromkeys(
        ("rank", "wrapped"), "rank\n"
    )
    assert not (tmp_path / "launcher").exists()
    assert [name for name, process in started.items() if process.poll() is not None] == []


def test_without_a_time_and_after_its_end_nothing_is_sent(started: dict[str, subprocess.Popen[bytes]]) -> None:
    never, ended = TimedWarning(None), TimedWarning(time.time() + 0.3)
    for warning in (never, ended):
        warning.start()
        warning.end()
    time.sleep(0.5)  # past the time at which it would have come
    assert (never.warned, ended.warned) == (None, None)
    assert all(process.poll() is None for process in started.values())
