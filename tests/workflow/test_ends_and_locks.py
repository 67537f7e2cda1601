"""Starts that end by a signal or are killed, the starts after them, and two on one results directory."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil
import pytest
from project_copy import NO_TORCH, Checkout, last_box

CLIMB = ("stage1", "--profile", "profiles/local")
# A run waits for as long as there is this named pipe, until someone opens its other side.
WAITS = f"import os\nif os.path.exists('gate'): open('gate').close()\n{NO_TORCH}"


def configure(checkout: Checkout, *, repeats: int = 2, **changes: object) -> None:
    workload = {"script": "script.py", "args": ["{batch_per_gpu}"], "batch_per_gpu": 16, "lr": None}
    checkout.configure(workload=workload, repeats=repeats, **changes)
    (checkout.path / "script.py").write_text(WAITS)
    os.mkfifo(checkout.path / "gate")


@contextlib.contextmanager
def climbing(checkout: Checkout, *through: str) -> Iterator[subprocess.Popen[str]]:
    """A climb whose first run waits; killed at the end, if it is still there."""
    process = checkout.start(*CLIMB, through=through)
    assert process.stdout is not None
    try:
        said = ""
        while "r1: started" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        yield process
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def assert_ended_in_order(checkout: Checkout) -> None:
    assert checkout.processes() == []
    assert json.loads((checkout.results / "start.lock1").read_text())["ended"]
    assert list(checkout.run_times()) == ["default/weak/1x1/r1"], "a run was started after the signal"
    assert not (checkout.results / "report").exists(), "nothing is judged"


@pytest.mark.parametrize(("signum", "told"), [(signal.SIGTERM, "a signal"), (signal.SIGINT, "Ctrl-C")])
def test_a_signal_ends_the_climb_in_order(checkout: Checkout, signum: signal.Signals, told: str) -> None:
    """SIGTERM to Snakemake alone, and SIGINT, as from a terminal, to the whole process group."""
    configure(checkout)
    with climbing(checkout) as process:
        for _ in range(2):  # the second one must not disturb the end
            process.terminate() if signum == signal.SIGTERM else os.killpg(process.pid, signum)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert f"{signum.name}: ending what runs; finished runs are kept" in said
    assert "Traceback" not in said
    assert last_box(said)["verdict"] == f"ended by {told} ({signum.name})"
    assert_ended_in_order(checkout)


def test_a_closed_terminal_ends_the_climb(checkout: Checkout) -> None:
    """Everything that writes to it gets an error from then on."""
    configure(checkout)
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 100))
    with os.fdopen(end, "w") as side:
        process = checkout.start(
            *CLIMB, output=side, stdin=end, through=("env", "--default-signal=HUP", "setsid", "--ctty", "--wait")
        )
    said = b""
    while b"starting" not in said:
        said += os.read(terminal, 4096)
    os.close(terminal)
    try:
        assert process.wait(timeout=120) == 1
    except subprocess.TimeoutExpired:
        tree = psutil.Process(process.pid).children(recursive=True)
        pytest.fail("\n".join(f"{each.pid} of {each.ppid()}, {each.status()}: {each.cmdline()}" for each in tree))
    assert_ended_in_order(checkout)


@dataclass(frozen=True)
class Killed:
    """A climb that was killed, and what was told to whoever wanted to do something while it ran."""

    checkout: Checkout
    done: dict[str, subprocess.CompletedProcess[str]]
    pid: int


WHILE_IT_RUNS = {"a dry run": ("stage1", "--dry-run"), "report and eject": ("report", "eject")}


@pytest.fixture(scope="module")
def killed(module_checkout: Callable[[], Checkout]) -> Killed:
    checkout, other = module_checkout(), module_checkout()
    configure(checkout, repeats=1)
    configure(other, results=str(checkout.results))
    with climbing(checkout) as process:
        done = {name: checkout.snakemake(*arguments) for name, arguments in WHILE_IT_RUNS.items()}
        done["another checkout"] = other.snakemake(*CLIMB)
        assert process.poll() is None
        held = json.loads((checkout.results / "start.lock1").read_text())
        assert held["process"]["pid"] == process.pid, "nobody else has taken it"
        assert list(checkout.run_times()) == ["default/weak/1x1/r1"]
        os.killpg(process.pid, signal.SIGKILL)  # its jobs' agents are in groups of their own, and have to end yet
        process.wait()
        (checkout.path / "gate").unlink()
        done["the next start"] = checkout.snakemake(*CLIMB)
    return Killed(checkout, done, process.pid)


def test_a_second_start_beside_a_climb_is_refused(killed: Killed) -> None:
    done = killed.done["another checkout"]
    assert done.returncode == 1
    assert "results: another start holds these results, and a second one would write to the same files" in done.stdout
    assert f"found    process {killed.pid} on " in done.stdout
    assert str(killed.checkout.path) in done.stdout
    assert f"end it with `kill {killed.pid}`" in done.stdout
    assert "LockException" not in done.stdout


@pytest.mark.parametrize("name", WHILE_IT_RUNS)
def test_what_disturbs_no_climb_works_beside_it(killed: Killed, name: str) -> None:
    assert killed.done[name].returncode == 0, killed.done[name].stdout


def test_the_start_after_a_kill_goes_on(killed: Killed) -> None:
    done = killed.done["the next start"]
    assert done.returncode == 0, done.stdout
    assert f"(process {killed.pid} on " in done.stdout
    assert "was killed; this one goes on from what it has left" in done.stdout
    assert "--unlock" not in done.stdout
    assert json.loads((killed.checkout.results / "start.lock2").read_text())["ended"]
