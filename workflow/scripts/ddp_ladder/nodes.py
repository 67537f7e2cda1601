"""Where a job's nodes are: agents of their own on this machine, or the nodes of a Slurm allocation."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from ddp_ladder.allocation import asks
from ddp_ladder.files import RunDirectory, writing
from ddp_ladder.formats import count
from ddp_ladder.lifetime import die_with_parent
from ddp_ladder.messages import UserError, printable
from ddp_ladder.network import LOOPBACK, address_towards, free_port, is_loopback, node_name
from ddp_ladder.plan import RunSpec, ScaleJob
from ddp_ladder.settings import Interface
from ddp_ladder.slurm_notation import host_names
from ddp_ladder.slurm_query import SHORTEST_ANSWER_S, SlurmError, Unreadable, run_command, silent, squeue, told_of
from ddp_ladder.slurm_step import step_argv, step_environment

AGENT = Path(__file__).parents[1] / "agent.py"
MEETING_POINT = Path(__file__).parents[1] / "meeting_point.py"
ANSWER_S = 120.0  # for a step of Slurm's and the start of a Python on a busy file system
ENDING_ANSWER_S = 5.0  # while a job ends its runs: what Slurm does not say by then has to do without it


class NoMeetingPoint(Exception):
    """A run's processes have nowhere to meet; ``next_step`` says what to do about it."""

    def __init__(self, why: object, next_step: str = "correct network.interface in cluster.yaml or in the variant"):
        super().__init__(str(why))
        self.next_step = next_step


class Nodes(Protocol):
    """What a scale's job needs of its nodes."""

    @property
    def job_id(self) -> str:
        """Identifies the job in every record."""

    def names(self, spec: RunSpec) -> list[str]:
        """Of the run's nodes, in the order of their ranks. Raises NoMeetingPoint where there are too few."""

    def agents_per_node(self, spec: RunSpec) -> int:
        """1, or as many as there are GPUs."""

    def meeting_point(self, spec: RunSpec, key: str) -> tuple[str, int]:
        """An address of the first node that every node of the run reaches, and a port that is free there.

        Raises NoMeetingPoint.
        """

    def starters(self, directory: RunDirectory, spec: RunSpec) -> list[Callable[[], subprocess.Popen[bytes]]]:
        """What starts the agents, at once; the processes end when theirs have, and SIGTERM ends these in order."""


def nodes_of(environment: Mapping[str, str], job: ScaleJob) -> Nodes:
    """Those of the allocation that this process belongs to; simulated on this machine where it belongs to none."""
    job_id = environment.get("SLURM_JOB_ID")
    return Allocation(job_id, job) if job_id else ThisMachine(local_job_id())


def local_job_id() -> str:
    """Unique on this machine and readable: local-<host>-<time>-<pid>."""
    return f"local-{socket.gethostname()}-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"


@dataclass(frozen=True)
class ThisMachine:
    """No Slurm job: a node is simulated, an agent of its own on this machine."""

    job_id: str

    def names(self, spec: RunSpec) -> list[str]:
        return [node_name()] * spec.nodes

    def agents_per_node(self, spec: RunSpec) -> int:
        return 1

    def meeting_point(self, spec: RunSpec, key: str) -> tuple[str, int]:
        try:
            return address_towards(spec.interface, LOOPBACK), free_port(key)
        except OSError as error:
            raise NoMeetingPoint(error) from error

    def starters(self, directory: RunDirectory, spec: RunSpec) -> list[Callable[[], subprocess.Popen[bytes]]]:
        return [partial(_start_agent, directory, spec, node_rank) for node_rank in range(spec.nodes)]


def _agent_command(directory: RunDirectory) -> list[str]:
    """Argument list of the agent; in a job step it learns from Slurm which one it is."""
    return [sys.executable, str(AGENT), "--run", str(directory.path)]


def _start_agent(directory: RunDirectory, spec: RunSpec, node_rank: int) -> subprocess.Popen[bytes]:
    env, job = dict(os.environ), os.getpid()
    if spec.device == "cuda" and spec.nodes > 1:
        first = node_rank * spec.gpus_per_node
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(first + k) for k in range(spec.gpus_per_node))
    return subprocess.Popen(
        [*_agent_command(directory), "--node-rank", str(node_rank)],
        env=env,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches the job alone, which ends its agents in order
        preexec_fn=lambda: die_with_parent(signal.SIGTERM, job),  # also of one that dies while the agent still starts
    )


@dataclass(frozen=True)
class Allocation:
    """The first nodes of a Slurm job, as many as the scale has. This process may be on one of them or on none.

    until_s: on the monotonic clock, when the time of the scale's runs is up; no question to Slurm takes longer.
    """

    job_id: str
    job: ScaleJob
    until_s: float = math.inf
    _heads: dict[str, tuple[str, list[int]]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def hostnames(self) -> list[str]:
        """In the order that the tasks of a step have, which is Slurm's own; --nodelist cannot change it.

        Raises NoMeetingPoint where there are too few, or Slurm does not tell.

        Asked of Slurm, because Snakemake's job step takes SLURM_JOB_NODELIST out of the environment.

        Also asked anew before each step: srun gives up where the controller does not answer, this waits for it.
        """
        try:
            names = list(host_names(told_of(self.job_id, "N", self.until_s)))
        except UserError as error:
            told = error.problems[0]
            again = "see whether `squeue --me` answers; then start snakemake again: finished runs are kept"
            raise NoMeetingPoint(f"{told.where}: {told.what}: {told.found}", again) from error
        if len(names) < self.job.scale.nodes:
            few = f"job {self.job_id} has {count(len(names), 'node')}, {self.job.scale} needs {self.job.scale.nodes}"
            raise NoMeetingPoint(few, f"start inside a larger allocation: {asks(self.job)}")
        return names[: self.job.scale.nodes]

    def names(self, spec: RunSpec) -> list[str]:
        return self.hostnames()

    def agents_per_node(self, spec: RunSpec) -> int:
        return spec.gpus_per_node if spec.launcher == "srun" else 1

    def meeting_point(self, spec: RunSpec, key: str) -> tuple[str, int]:
        host, ports = self._head(spec.interface)
        return host, ports[zlib.crc32(key.encode()) % len(ports)]

    def _head(self, interface: Interface) -> tuple[str, list[int]]:
        """Asked on the first node, where alone it can be seen, once for each interface that the variants want."""
        wanted = json.dumps(interface)
        if wanted not in self._heads:
            self._heads[wanted] = self._ask_head(wanted)
        return self._heads[wanted]

    def _ask_head(self, wanted: str) -> tuple[str, list[int]]:
        hostnames = self.hostnames()
        asked = self._question(hostnames, wanted)
        if silent(asked.stderr):
            asked = self._question(self.hostnames(), wanted)  # which waits for the controller
        own, of_srun = _split(asked.stderr)
        if asked.returncode != 0 and own:
            raise NoMeetingPoint(own)
        if asked.returncode != 0:
            raise NoMeetingPoint(of_srun or f"srun ended with {asked.returncode}", self._compare)
        host, ports = self._read_head(asked.stdout)
        if len(hostnames) > 1 and is_loopback(host):
            raise NoMeetingPoint(f"{host} of {hostnames[0]} is an address that no other node reaches")
        if not ports:
            raise NoMeetingPoint(f"no free port on {hostnames[0]}", "look at what listens there: ss --listening")
        return host, ports

    def _read_head(self, printed: str) -> tuple[str, list[int]]:
        """Of what the step printed; a prolog or an epilog of the site's may have said something beside it."""
        for line in reversed(printed.splitlines()):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                told = json.loads(line)
                return told["host"], told["ports"]
        raise NoMeetingPoint(str(Unreadable("srun", printed)), self._compare)

    def _question(self, hostnames: list[str], wanted: str) -> subprocess.CompletedProcess[str]:
        towards = hostnames[1] if len(hostnames) > 1 else LOOPBACK
        within_s = min(ANSWER_S, max(SHORTEST_ANSWER_S, self.until_s - time.monotonic()))
        question = [sys.executable, str(MEETING_POINT), "--interface", wanted, "--towards", towards]
        try:
            return subprocess.run(
                [*step_argv(self.job, hostnames[:1], 1, "meeting-point"), *question, "--key", self.job_id],
                env=step_environment(os.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=within_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            said = printable(os.fsdecode(error.stderr or b"")).strip()
            waited = f"waited {within_s:.3g} s for a job step on {hostnames[0]}"
            raise NoMeetingPoint(f"{waited}: {said}", self._compare) from error

    @property
    def _compare(self) -> str:
        return f"compare `node` in cluster.yaml with what the job has: scontrol show job --details {self.job_id}"

    def starters(self, directory: RunDirectory, spec: RunSpec) -> list[Callable[[], subprocess.Popen[bytes]]]:
        name = "-".join(("run", *Path(spec.name).parts, str(os.getpid())))
        argv = step_argv(self.job, self.hostnames(), self.agents_per_node(spec), name)

        def start() -> subprocess.Popen[bytes]:
            with writing(directory.launcher_log), directory.launcher_log.open("ab") as log:
                return Step(self.job_id, name, [*argv, *_agent_command(directory)], log.fileno())

        return [start]


def _split(errors: str) -> tuple[str, str]:
    """Apart: what a program in a step said, and what srun said."""
    lines = [line for line in printable(errors).splitlines() if line.strip()]
    of_srun = [line for line in lines if line.startswith(("srun: ", "slurmstepd"))]
    return "; ".join(line for line in lines if line not in of_srun), "; ".join(of_srun)


class Step(subprocess.Popen[bytes]):
    """An srun. SIGTERM ends its tasks in order; srun itself would kill them at once."""

    def __init__(self, job_id: str, name: str, argv: list[str], output: int) -> None:
        self._job_id, self._name = job_id, name
        super().__init__(
            argv,
            env=step_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C reaches the job alone
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # in an allocation the step could outlive the job
        )

    def terminate(self) -> None:
        """SIGTERM to the step's tasks; to srun when there is no such step, so nothing that could be lost."""
        try:
            steps = squeue("ij", "--steps", f"--jobs={self._job_id}", within_s=ENDING_ANSWER_S)
        except SlurmError:
            steps = []
        ids = [step for step, name in steps if name == self._name]
        if ids:
            # Its exit code says nothing: it may be 1 although the signal has arrived.
            with contextlib.suppress(SlurmError):
                run_command(["scancel", "--signal=TERM", *ids], ENDING_ANSWER_S)
        else:
            super().terminate()

    def kill(self) -> None:
        """SIGTERM to srun: were it killed itself, its tasks would go on."""
        super().terminate()
