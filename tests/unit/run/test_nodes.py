from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from ddp_ladder.node.launch import LOOPBACK, address, interface_here, node_name
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.run import nodes
from ddp_ladder.run.interruption import _end_agents
from ddp_ladder.run.nodes import Allocation, JobStep, NoRendezvous, ThisMachine, nodes_of
from ddp_ladder.settings.keys import Slurm
from ddp_ladder.settings.terms import Scale
from make_files import write_programs
from make_records import make_spec

LO = interface_here(LOOPBACK)
JOB = ScaleJob(stage="stage3", scale=Scale(2, 2), runtime_min=5, runs=(), cpus=4, slurm=Slurm())


def test_a_slurm_job_has_its_allocation_and_everything_else_this_machine() -> None:
    assert nodes_of({"SLURM_JOB_ID": "42"}, JOB) == Allocation("42", JOB)
    assert nodes_of({}, JOB).job_id.startswith(f"local-{socket.gethostname()}-")


def test_simulated_nodes_meet_over_loopback_or_the_interface_that_is_named() -> None:
    here = ThisMachine("local-test")
    assert here.names(make_spec("3x1")) == [node_name()] * 3
    assert here.endpoint(make_spec("2x1", interface="auto"), "key")[0] == LOOPBACK
    assert here.endpoint(make_spec("2x1", interface=LO), "key")[0] == address(LO)
    missing = f"no interface ib77 with an IPv4 address on {node_name()}; there are .*{LO}"
    with pytest.raises(NoRendezvous, match=missing):
        here.endpoint(make_spec("2x1", interface="ib77"), "key")
    for launcher, agents in (("torchrun", 1), ("srun", 2)):  # one for each GPU in a Slurm job alone
        spec = make_spec("2x2", launcher=launcher)
        assert (Allocation("42", JOB).agents_per_node(spec), here.agents_per_node(spec)) == (agents, 1)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Stand-ins for Slurm's commands, first in the PATH: job 42 has node1 to node3; srun does what it is told to."""

    def install(srun: str) -> Path:
        programs = tmp_path / "programs"
        programs.mkdir()
        called = tmp_path / "called"
        squeue = "echo 'ddp-ladder|NODELIST'; echo 'ddp-ladder|node[1-3]'"
        write_programs(programs, squeue=squeue, srun=f'printf "%s\\n" "$@" >>{called}; {srun}')
        monkeypatch.setenv("PATH", str(programs), prepend=":")
        return called

    return install


def answer(host: str, ports: list[int]) -> str:
    message = json.dumps({"host": host, "ports": ports})
    return f"echo a word of the prolog; echo '{message}'; echo 7; echo one of the epilog"


def test_the_first_node_of_the_scale_is_asked_once_where_the_run_meets(slurm: Callable[[str], Path]) -> None:
    called = slurm(answer("10.0.0.1", [20_001, 20_002, 20_003]))
    allocation = Allocation("42", JOB)
    points = {allocation.endpoint(make_spec("2x2"), f"run {k}") for k in range(20)}
    assert points == {("10.0.0.1", port) for port in (20_001, 20_002, 20_003)}
    words = called.read_text().splitlines()
    assert words.count("--nodelist=node1") == 1
    assert words[words.index("--towards") + 1] == "node2"
    allocation.endpoint(make_spec("2x2", interface={"node1": "eth1"}), "run 1")
    assert called.read_text().splitlines().count("--nodelist=node1") == 2
    assert allocation.names(make_spec("2x2")) == ["node1", "node2"]  # of three: as many as the scale has


@pytest.mark.parametrize(
    ("srun", "message", "next_step"),
    [
        (answer("127.0.1.1", [20_001]), "127.0.1.1 of node1 is an address that no other node reaches", "interface"),
        (answer("10.0.0.1", []), "no free port on node1", "ss --listening"),
        ("echo no ib7 >&2; echo 'srun: error: node1: task 0: Exited' >&2; exit 1", "no ib7", "network.interface"),
        (
            "echo 'node1 has no address for the name node2: Name or service not known' >&2; exit 1",
            "node1 has no address for the name node2: Name or service not known",
            "on node1, `getent hosts node2` must print an address (srun --nodelist=node1 getent hosts node2)",
        ),
        ("echo 'srun: error: Invalid job id' >&2; exit 1", "srun: error: Invalid job id", "scontrol"),
        ("exit 3", "srun ended with 3 and printed ''", "scontrol"),
        ("echo 'A nice day'", "srun ended with 0 and printed 'A nice day\\n'", "scontrol"),
        ("echo 'srun: busy' >&2; exec sleep 60", "waited 0.5 s for a job step on node1: srun: busy", "scontrol"),
    ],
)
def test_where_no_run_can_meet_it_says_why(
    slurm: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, srun: str, message: str, next_step: str
) -> None:
    slurm(srun)
    if "sleep" in srun:
        monkeypatch.setattr(nodes, "ANSWER_S", 0.5)
    with pytest.raises(NoRendezvous, match=f"^{re.escape(message)}$") as caught:
        Allocation("42", JOB).endpoint(make_spec("2x2"), "run")
    assert next_step in caught.value.next_step


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_the_job_step_of_an_srun_that_was_killed_or_is_stopped_is_ended_before_it_is_left(
    slurm: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Slurm shows it until it gets SIGKILL, and another step of the job for ever."""
    slurm("")
    shown, sent = tmp_path / "shown", tmp_path / "sent"
    shown.touch()
    rows = "echo 'ddp-ladder|STEPID|NAME'; echo 'ddp-ladder|42.1|other'"
    write_programs(
        tmp_path / "programs",
        squeue=f"{rows}; if [ -e {shown} ]; then echo 'ddp-ladder|42.2|run'; fi",
        scancel=f'echo "$@" >>{sent}; case "$*" in *KILL*) rm -f {shown};; esac',
    )
    monkeypatch.setattr(nodes, "LOOK_S", 0.1)
    monkeypatch.setattr(nodes, "KILLED_S", 5.0 if how == "killed" else 0.2)
    step = JobStep("42", "run", ["sleep", "60"], os.environ, tmp_path / "srun.log")
    os.kill(step.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    if how == "killed":
        step.wait()
    _end_agents([step], 0.5)
    assert sent.read_text().splitlines() == ["--signal=TERM 42.2", "--signal=KILL 42.2"]
    assert step.wait(5) == -signal.SIGKILL
