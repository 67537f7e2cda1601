"""The agent: however it ends, it passes on what it should and leaves nothing behind. Real processes, real torchrun."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from ddp_ladder.assembly.assemble import assemble
from ddp_ladder.common.files import Agent, RunDirectory, read_json, write_json
from ddp_ladder.node.launch import free_port, node_name
from ddp_ladder.plan.plan import RunSpec, make_plan
from ddp_ladder.records.raw_models import AgentEnd
from ddp_ladder.settings.load import load_settings
from instrument_support import python_named
from patience import SILENT_S, Patience
from project_copy import ROOT, environment

SCRIPTS = ROOT / "workflow/scripts"
AGENT = f"""
import resource, sys
sys.path.insert(0, {str(SCRIPTS)!r})
import agent
from ddp_ladder.run import agent as settings
settings.GRACE_S = float(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (1000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
sys.exit(agent.main(["--run", sys.argv[2], "--node-rank", "0"]))
"""
SAY_READY = """
import os, signal, sys, threading
from pathlib import Path
here = Path(sys.argv[1])
rank = os.environ["RANK"]
def ready(): (here / f"ready{rank}").write_text(str(os.getpid()))
"""
WAIT = "ready(); threading.Event().wait()\n"
FLOOD = """
line = (rank * 99 + "\\n").encode()
for _ in range(100):
    os.write(1, line * 1000)  # 10 MB
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    """Two ranks on one node, running tmp_path/script.py."""
    monkeypatch.chdir(ROOT)
    shipped = make_plan(load_settings(Path("config/config.yaml"), Path("config/cluster.yaml")))
    run = next(run for run in shipped.runs if run.world_size == 2 and run.nodes == 1)
    return run.replace(script=str(tmp_path / "script.py"), args=(str(tmp_path),), launcher="srun")


def start(
    spec: RunSpec, body: str, grace_s: float = 20.0, max_log_mb: int = 100, **more: Any
) -> subprocess.Popen[bytes]:
    """Write the script and run.json, and start the agent. more: of run.json."""
    script = Path(spec.script)
    script.write_text(SAY_READY + body)
    run = {
        "schema_version": 2,
        "spec": spec.model_dump(),
        "spec_hash": spec.hash,
        "job": {"id": "test", "attempt": 1, "run_id": "1"},
        "rendezvous": {"id": script.parent.name, "host": "127.0.0.1", "port": free_port(str(script))},
        "start_directory": str(ROOT),
        "run_directory": str(script.parent),
        "nodes": [node_name()],
        "agents_per_node": 1,
        "max_log_mb_per_node": max_log_mb,
        **more,
    }
    write_json(RunDirectory(script.parent).run, run)
    argv = [sys.executable, "-c", AGENT, str(grace_s), str(script.parent)]
    return subprocess.Popen(argv, env=environment(), start_new_session=True)


def ready(spec: RunSpec, body: str, **options: Any) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    """Start the agent and wait until every rank says that it is ready; return the processes below it, too."""
    agent = start(spec, body, **options)
    ranks = [Path(spec.script).parent / f"ready{k}" for k in range(spec.world_size)]
    wait_for(lambda: all(file.exists() and file.read_text() for file in ranks), agent)
    return agent, psutil.Process(agent.pid).children(recursive=True)


def wait_for(condition: Callable[[], bool], agent: subprocess.Popen[bytes]) -> None:
    """Poll until the condition holds; fails when the agent ends first, or nothing below it computes any more."""
    patience = Patience(agent.pid)
    while not condition():
        assert not patience.is_over, f"nothing computes, and it did not come within {SILENT_S:g} s"
        if agent.poll() is not None:
            assert condition(), f"the agent ended with {agent.returncode}"
        time.sleep(0.05)


def exit_code(agent: subprocess.Popen[bytes]) -> int:
    """Wait until the agent has ended, and return its exit code."""
    wait_for(lambda: agent.poll() is not None, agent)
    return int(agent.returncode)


def end_of(spec: RunSpec) -> AgentEnd:
    return AgentEnd.from_json(read_json(RunDirectory(Path(spec.script).parent).agent_end(Agent(0))))


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert alive == []


def test_a_killed_agent_leaves_no_process_and_the_head_of_the_log(spec: RunSpec, tmp_path: Path) -> None:
    body = f"os.write(1, b'the first line\\n')\n{FLOOD}\n{WAIT}"
    agent, below = ready(spec.replace(launcher="torchrun"), body, max_log_mb=1)
    assert len(below) >= 2
    agent.kill()
    agent.wait()
    assert_gone(below)
    log = RunDirectory(tmp_path).log
    assert b"the first line\n" in log.read_bytes()[:1000]
    assert log.stat().st_size <= 1_000_000


def test_sigterm_ends_the_setup_of_the_software(spec: RunSpec, tmp_path: Path) -> None:
    setup = f"cd {shlex.quote(str(tmp_path))}; echo $$ >ready0; echo $$ >ready1; sleep 600"
    agent, below = ready(spec.replace(setup=setup), "")
    assert below != []
    agent.terminate()
    assert exit_code(agent) == 128 + signal.SIGTERM
    assert_gone(below)
    end = end_of(spec)
    assert (end.exit_code, end.signal, end.error) == (-signal.SIGTERM, "SIGTERM", None)


# A rank needs time to save its state: until the test has told it as often as it wants.
SAVE = """
told = 0
def save(*_):
    global told
    told += 1
    is_first = told == 1  # the next one may come within the next line
    (here / f"told{rank}").write_text(str(told))
    if is_first:
        while not (here / "enough").exists():
            threading.Event().wait(0.01)
        (here / f"part{rank}").write_text(str(told))
        (here / f"part{rank}").rename(here / f"saved{rank}")
        while len([*here.glob("saved*")]) < 2:  # the first to end has the other one ended
            threading.Event().wait(0.01)
        sys.exit(75)
"""


def saved_when_all_are_told(
    spec: RunSpec, tmp_path: Path, signum: signal.Signals, times: int = 1, code: int = 75
) -> set[str]:
    """Signal all processes of a run as Slurm does; return how often each rank was told while it saved its state."""
    agent, below = ready(
        spec,
        SAVE.replace("exit(75)", f"exit({code})")
        + f"signal.signal({signum.value}, save)\n(here / f'waits{{rank}}').touch()\n"
        + WAIT,
    )
    wait_for(lambda: all((tmp_path / f"waits{k}").exists() for k in range(2)), agent)
    told = [tmp_path / f"told{k}" for k in range(2)]
    for number in range(1, times + 1):
        for process in (*below, psutil.Process(agent.pid)):
            process.send_signal(signum)
        wait_for(lambda: all(file.exists() and int(file.read_text() or 0) >= number for file in told), agent)  # noqa: B023
    (tmp_path / "enough").touch()
    exit_code(agent)
    assert_gone(below)
    return {(tmp_path / f"saved{k}").read_text() for k in range(2)}


@pytest.mark.parametrize(("launcher", "torch"), [("torchrun", "oldest"), ("srun", "newest")])
def test_a_warning_of_the_scheduler_lets_ranks_save_their_state(
    spec: RunSpec, tmp_path: Path, launcher: str, torch: str
) -> None:
    """``--signal=USR1@120``: torchrun passes it on to ranks that Slurm tells, too."""
    told = saved_when_all_are_told(
        spec.replace(launcher=launcher, python=str(python_named(torch))), tmp_path, signal.SIGUSR1
    )
    assert told <= {"1", "2" if launcher == "torchrun" else "1"}


def test_a_script_that_saves_and_ends_well_was_stopped_by_the_signal(spec: RunSpec, tmp_path: Path) -> None:
    """torchrun's own exit code is 1, and it prints warnings that have nothing to do with it."""
    assert saved_when_all_are_told(spec.replace(launcher="torchrun"), tmp_path, signal.SIGUSR1, code=0)
    failure = assemble(RunDirectory(tmp_path)).failure
    assert failure
    assert failure.verdict == "stopped by a signal", failure
    assert failure.why.startswith("SIGUSR1 came after ")
    assert "; ranks 0, 1 then ended with exit code 0" in failure.why


def test_a_second_sigterm_does_not_end_ranks_that_save_and_nothing_of_torchrun_is_left(
    spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled job is told by Slurm, and again as the ladder ends its steps. torchrun's own exit code is 1."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    assert saved_when_all_are_told(spec.replace(launcher="torchrun"), tmp_path, signal.SIGTERM, times=3)
    directory = RunDirectory(tmp_path)
    failure = assemble(directory).failure
    assert failure
    assert failure.verdict == "stopped by a signal, saved its state"
    assert failure.why.startswith("ranks 0, 1: exit code 75 after ")
    assert not list(temporary.glob("torchelastic_*"))
    assert not [path for path in directory.nodes.iterdir() if path.is_dir()]


def test_script_that_ignores_sigterm_is_killed_after_the_grace_period_and_no_heartbeat_is_left(spec: RunSpec) -> None:
    told = "(here / 'beats').write_text(os.environ['DDP_LADDER_HEARTBEATS'])\n"
    agent, below = ready(spec, f"{told}signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WAIT}", grace_s=1)
    beats = Path(Path(spec.script).with_name("beats").read_text())
    assert {file.name for file in beats.iterdir()} > {"rank0.heartbeat", "rank1.heartbeat"}
    agent.terminate()
    assert exit_code(agent) == 128 + signal.SIGTERM
    assert_gone(below)
    assert not beats.exists()


def test_a_run_may_open_many_files_and_what_it_left_running_is_ended(spec: RunSpec, tmp_path: Path) -> None:
    """A daemon in a session of its own, as a tensorboard or a data server would be. The agent began with 1000 files."""
    body = """
import resource, subprocess
daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
(here / f"left{rank}").write_text(f"{daemon.pid} {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}")
"""
    assert exit_code(start(spec, body)) == 0
    for rank in (0, 1):
        pid, files = map(int, (tmp_path / f"left{rank}").read_text().split())
        assert not psutil.pid_exists(pid)
        assert files > 1000


def test_a_full_disk_under_the_log_ends_no_training(spec: RunSpec, tmp_path: Path) -> None:
    """/dev/full is a file on a disk that is full."""
    RunDirectory(tmp_path).log.symlink_to("/dev/full")
    assert exit_code(start(spec, FLOOD)) == 0
    lost = [remark.measured for remark in assemble(RunDirectory(tmp_path)).remarks if remark.kind == "log"]
    assert lost == [
        "the log is incomplete: 20.0 MB of the output of node 0 could not be written: No space left on device"
    ]
