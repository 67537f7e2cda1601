"""The agent: however it ends, it passes on what it should and leaves nothing behind. Real processes, real torchrun."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from ddp_ladder.common.files import Agent, RunDirectory, write_json
from ddp_ladder.node.network import free_port, node_name
from ddp_ladder.node.software import MOST_OPEN_FILES
from ddp_ladder.plan.plan import RunSpec, make_plan
from ddp_ladder.records.assemble import assemble
from ddp_ladder.settings.load import load_settings
from instrument_support import python_named
from project_copy import ROOT, environment

AGENT = ROOT / "workflow/scripts/agent.py"
TIMEOUT_S = 90

SAY_READY = """
import os, signal, sys, threading
from pathlib import Path
here = Path(sys.argv[1])
rank = os.environ["RANK"]
def ready(): (here / f"ready{rank}").write_text(str(os.getpid()))
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    """Two ranks on one node, running tmp_path/script.py."""
    monkeypatch.chdir(ROOT)
    shipped = make_plan(load_settings(Path("config/config.yaml"), Path("config/cluster.yaml")))
    run = next(run for run in shipped.runs if run.world_size == 2 and run.nodes == 1)
    return run.replace(script=str(tmp_path / "script.py"), args=(str(tmp_path),))


def start(
    spec: RunSpec, tmp_path: Path, body: str, grace_s: float | None = None, max_log_mb: int = 100
) -> subprocess.Popen[bytes]:
    """Write the script and run.json, start the agent, and wait until every rank says that it is ready."""
    Path(spec.script).write_text(SAY_READY + body)
    port = free_port(str(tmp_path))
    run = {
        "schema_version": 1,
        "spec": spec.model_dump(),
        "spec_hash": spec.hash,
        "job": {"id": "test", "attempt": 1, "run_id": "1"},
        "rendezvous": {"id": tmp_path.name, "host": "127.0.0.1", "port": port},
        "start_directory": str(ROOT),
        "run_directory": str(tmp_path),
        "nodes": [node_name()],
        "agents_per_node": 1,
        "max_log_mb_per_node": max_log_mb,
    }
    write_json(RunDirectory(tmp_path).run, run)
    arguments = ["--run", str(tmp_path), "--node-rank", "0"]
    command = [sys.executable, str(AGENT), *arguments]
    if grace_s is not None:
        patched = (
            f"import sys; sys.path.insert(0, {str(AGENT.parent)!r})\n"
            f"from ddp_ladder.run import agent; agent.GRACE_S = {grace_s}\n"
            f"import runpy; sys.argv = {['agent.py', *arguments]!r}\n"
            f"runpy.run_path({str(AGENT)!r}, run_name='__main__')"
        )
        command = [sys.executable, "-c", patched]
    agent = subprocess.Popen(command, env=environment(), start_new_session=True)
    ranks = [tmp_path / f"ready{k}" for k in range(spec.world_size)]
    wait_for(lambda: all(file.exists() and file.read_text() for file in ranks), agent)
    return agent


def wait_for(condition: Callable[[], bool], agent: subprocess.Popen[bytes]) -> None:
    """Poll until the condition holds; fails when the agent ends or the time is up first."""
    for _ in range(TIMEOUT_S * 20):
        if condition():
            return
        try:
            agent.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        assert condition(), f"the agent ended with {agent.returncode}"
        return
    pytest.fail(f"not within {TIMEOUT_S} s")


def family(agent: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(agent.pid).children(recursive=True)


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert alive == []


WAIT = "ready(); threading.Event().wait()\n"


def test_killed_agent_leaves_no_process(spec: RunSpec, tmp_path: Path) -> None:
    agent = start(spec.replace(launcher="torchrun"), tmp_path, WAIT)
    below = family(agent)
    assert len(below) >= 2
    agent.kill()
    agent.wait()
    assert_gone(below)


def test_sigterm_ends_the_setup_of_the_software(spec: RunSpec, tmp_path: Path) -> None:
    setup = f"cd {shlex.quote(str(tmp_path))}; echo $$ >ready0; echo $$ >ready1; sleep 600"
    agent = start(spec.replace(setup=setup), tmp_path, "")
    below = family(agent)
    assert below != []
    agent.terminate()
    assert agent.wait(TIMEOUT_S) == 128 + signal.SIGTERM
    assert_gone(below)
    end = json.loads(RunDirectory(tmp_path).agent_end(Agent(0)).read_text())
    assert (end["exit_code"], end["signal"], end["error"]) == (-signal.SIGTERM, "SIGTERM", None)


def test_an_engine_that_is_missing_is_reported(spec: RunSpec, tmp_path: Path) -> None:
    container = {"image": "a.sif", "engine": "apptainer", "binds": [], "args": []}
    setup = f"cd {shlex.quote(str(tmp_path))}; echo x >ready0; echo x >ready1; PATH={shlex.quote(str(tmp_path))}"
    agent = start(spec.replace(setup=setup, container=container), tmp_path, "")
    assert agent.wait(TIMEOUT_S) == 1
    end = json.loads(RunDirectory(tmp_path).agent_end(Agent(0)).read_text())
    assert end["error"] == "software.container: apptainer cannot be started: No such file or directory"
    assert end["error"] in RunDirectory(tmp_path).log.read_text()


SAVE = """
told = 0
def save(*_):
    global told
    told += 1
    if told == 1:
        threading.Event().wait(2)
        (here / f'saved{rank}').write_text(str(told))
        sys.exit(75)
"""


def saved_when_all_are_told(spec: RunSpec, tmp_path: Path, signum: signal.Signals, times: int = 1) -> set[str]:
    """Signal all processes of a run as Slurm does; return how often each rank was told while it saved its state."""
    agent = start(spec, tmp_path, SAVE + f"signal.signal({signum.value}, save)\n" + WAIT)
    below = family(agent)
    for _ in range(times):
        for process in (*below, psutil.Process(agent.pid)):
            process.send_signal(signum)
        time.sleep(0.3)  # less than a rank needs to save
    agent.wait(TIMEOUT_S)
    assert_gone(below)
    return {(tmp_path / f"saved{k}").read_text() for k in range(2)}


def test_the_oldest_torchrun_lets_its_ranks_save_their_state(spec: RunSpec, tmp_path: Path) -> None:
    """``--signal=USR1@120``: torchrun is told too, and passes it on. tests/slurm has the newest."""
    torchrun = spec.replace(launcher="torchrun", python=str(python_named("oldest")))
    assert saved_when_all_are_told(torchrun, tmp_path, signal.SIGUSR1) <= {"1", "2"}


def test_a_warning_of_the_scheduler_comes_once(spec: RunSpec, tmp_path: Path) -> None:
    assert saved_when_all_are_told(spec.replace(launcher="srun"), tmp_path, signal.SIGUSR1) == {"1"}


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
    assert failure.why.startswith("rank 0, 1: exit code 75 after ")
    assert not list(temporary.glob("torchelastic_*"))
    assert not [path for path in directory.nodes.iterdir() if path.is_dir()]


def test_script_that_ignores_sigterm_is_killed_after_the_grace_period(spec: RunSpec, tmp_path: Path) -> None:
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT
    agent = start(spec.replace(launcher="srun"), tmp_path, body, grace_s=1)
    below = family(agent)
    agent.terminate()
    assert agent.wait(TIMEOUT_S) == 128 + signal.SIGTERM
    assert_gone(below)


def test_one_failing_process_ends_the_others(spec: RunSpec, tmp_path: Path) -> None:
    # Rank 1 fails once rank 0 is ready: the agent ends the others at once.
    other_is_ready = (
        "while not ((here / 'ready0').exists() and (here / 'ready0').read_text()): threading.Event().wait(0.01)"
    )
    body = f"if rank == '1':\n    ready()\n    {other_is_ready}\n    sys.exit(3)\n" + WAIT
    agent = start(spec.replace(launcher="srun"), tmp_path, body)
    assert agent.wait(TIMEOUT_S) == 3
    assert not [p for p in psutil.process_iter(["cmdline"]) if spec.script in (p.info["cmdline"] or [])]


def test_what_the_script_left_running_is_ended(spec: RunSpec, tmp_path: Path) -> None:
    """A daemon in a session of its own, as a tensorboard or a data server would be."""
    body = (
        "import subprocess\n"
        "if rank == '0':\n"
        "    daemon = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "    (here / 'daemon').write_text(str(daemon.pid))\n"
        "ready()\n"
    )
    agent = start(spec.replace(launcher="srun"), tmp_path, body)
    agent.wait(TIMEOUT_S)
    assert not psutil.pid_exists(int((tmp_path / "daemon").read_text()))


def test_output_goes_to_the_log_threads_come_from_the_plan_and_files_are_many(spec: RunSpec, tmp_path: Path) -> None:
    os.environ["MKL_NUM_THREADS"] = "7"  # as Snakemake sets it for its jobs
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
    try:
        # One write for each line: the ranks share the log.
        body = "seen = [os.environ.get(f'{name}_NUM_THREADS') for name in ('OMP', 'MKL')]\n"
        body += "import resource; files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]\n"
        body += "sys.stdout.write(f'threads {seen[0]} {seen[1]}, files {files}\\n')\nready()\n"
        agent = start(spec.replace(launcher="srun"), tmp_path, body)
        agent.wait(TIMEOUT_S)
    finally:
        del os.environ["MKL_NUM_THREADS"]
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wanted = f"threads {spec.threads_per_rank} None, files {min(hard, MOST_OPEN_FILES)}"
    assert RunDirectory(tmp_path).log.read_text().count(wanted) == 2


FLOOD = """
line = (rank * 99 + "\\n").encode()
for _ in range(100):
    os.write(1, line * 1000)  # 10 MB
"""


def test_of_a_flood_the_head_and_the_tail_are_kept(spec: RunSpec, tmp_path: Path) -> None:
    # One write for each line: the ranks share the log.
    body = f"os.write(1, b'the first line\\n'); ready()\n{FLOOD}\nos.write(1, b'the last line\\n')\n"
    agent = start(spec.replace(launcher="srun"), tmp_path, body, max_log_mb=1)
    assert agent.wait(TIMEOUT_S) == 0
    end = json.loads(RunDirectory(tmp_path).agent_end(Agent(0)).read_text())
    log = RunDirectory(tmp_path).log.read_bytes()
    assert re.match(rb"ddp-ladder: head node \S+, \S+:\d+ on \S+\nthe first line\n", log)
    assert log.endswith(b"\nthe last line\n")
    assert len(log) <= 1_000_000
    assert log.count(b"logs.max_mb_per_node is 1 in config.yaml") == 1
    assert end["log"]["bytes"] > 20_000_000 > end["log"]["left_out_bytes"] > 19_000_000


def test_the_head_of_the_log_survives_a_killed_agent(spec: RunSpec, tmp_path: Path) -> None:
    body = f"os.write(1, b'the first line\\n')\n{FLOOD}\n{WAIT}"
    agent = start(spec.replace(launcher="srun"), tmp_path, body, max_log_mb=1)
    agent.kill()
    agent.wait()
    log = RunDirectory(tmp_path).log
    assert b"\nthe first line\n" in log.read_bytes()[:200]
    assert log.stat().st_size <= 1_000_000


def test_a_full_disk_under_the_log_ends_no_training(spec: RunSpec, tmp_path: Path) -> None:
    """/dev/full is a file on a disk that is full."""
    RunDirectory(tmp_path).log.symlink_to("/dev/full")
    agent = start(spec.replace(launcher="srun"), tmp_path, f"ready()\n{FLOOD}")
    assert agent.wait(TIMEOUT_S) == 0
    end = json.loads(RunDirectory(tmp_path).agent_end(Agent(0)).read_text())
    assert end["log"]["lost_bytes"] == end["log"]["bytes"] > 20_000_000
    lost = [remark.what for remark in assemble(RunDirectory(tmp_path)).remarks if remark.name == "log"]
    assert lost == [
        "the log is incomplete: 20.0 MB of the output of node 0 could not be written: No space left on device"
    ]
