"""The nodes of a job: agents on this machine that simulate nodes, or the nodes of a Slurm allocation."""

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ddp_ladder.common.files import SCRIPTS, RunDirectory, profile, write_json, writing
from ddp_ladder.common.formats import count
from ddp_ladder.common.messages import UserError, leave_out, printable
from ddp_ladder.common.process import die_with_parent
from ddp_ladder.node.launch import LOOPBACK, NO_ADDRESS, Places, address_towards, free_port, is_loopback, node_name
from ddp_ladder.plan.plan import RunSpec, ScaleJob
from ddp_ladder.platform.accelerators import ACCELERATORS
from ddp_ladder.platform.launchers import LAUNCHERS, Rendezvous
from ddp_ladder.records.raw_models import Job, RunFile
from ddp_ladder.run.interruption import KILLED_S, AgentProcess, Starter
from ddp_ladder.slurm.jobs import AGAIN
from ddp_ladder.slurm.query import (
    SHORTEST_ANSWER_S,
    SlurmError,
    host_names,
    job_field,
    run_command,
    squeue,
    step_argv,
    step_environment,
    undecided,
)

AGENT = SCRIPTS / "agent.py"
RENDEZVOUS = SCRIPTS / "rendezvous.py"
ANSWER_S = 120.0  # for a job step and the start of a Python on a busy file system
ENDING_ANSWER_S = 5.0  # while a job ends its runs; without an answer by then it goes on
LOOK_S = 1.0


class NoRendezvous(Exception):
    """A run's processes have no rendezvous endpoint; ``next_step`` says what to do."""

    def __init__(self, why: object, next_step: str = "correct network.interface in cluster.yaml or in the variant"):
        super().__init__(str(why))
        self.next_step = next_step


def local_job_id() -> str:
    """Return an id that is unique on this machine: local-<host>-<time>-<pid>."""
    return f"local-{socket.gethostname()}-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"


@dataclass(frozen=True)
class ThisMachine:
    """Nodes without Slurm: each is simulated by an agent on this machine."""

    job_id: str  # in every record

    def names(self, spec: RunSpec) -> list[str]:
        """Return the run's nodes, in the order of their ranks. Raises NoRendezvous if there are too few."""
        return [node_name()] * spec.nodes

    def agents_per_node(self, spec: RunSpec) -> int:
        """Return 1, or the number of GPUs per node."""
        return 1

    def endpoint(self, spec: RunSpec, key: str) -> tuple[str, int]:
        """Return an address of the first node that all nodes reach, and a port free there. Raises NoRendezvous."""
        try:
            return address_towards(spec.interface, LOOPBACK), free_port(key)
        except OSError as error:
            raise NoRendezvous(error) from error

    def starters(
        self, directory: RunDirectory, spec: RunSpec, program: Path = AGENT, per_node: int | None = None
    ) -> list[Starter]:
        """Return functions that start the agents. Each process ends after its agents; SIGTERM ends them in order.

        program: takes the agent's place and its options. per_node: how many on each node; None: agents_per_node.
        """
        return [partial(_start_agent, directory, spec, program, node_rank) for node_rank in range(spec.nodes)]


def _agent_command(directory: RunDirectory, program: Path) -> list[str]:
    """Return the agent's argument list; in a job step Slurm's variables number the agents.

    A shell, which starts at once, ignores the scheduler's warnings for it: they would kill a Python that still starts.
    """
    shell = ["sh", "-c", 'trap "" USR1 USR2; exec "$@"', "sh"]
    return [*shell, sys.executable, str(program), "--run", str(directory.path)]


def _start_agent(directory: RunDirectory, spec: RunSpec, program: Path, node_rank: int) -> AgentProcess:
    env, job = dict(os.environ), os.getpid()
    if (visible := ACCELERATORS[spec.device].visible_variable) and spec.nodes > 1:
        first = node_rank * spec.gpus_per_node
        env[visible] = ",".join(str(first + k) for k in range(spec.gpus_per_node))
    return AgentProcess(
        [*_agent_command(directory, program), "--node-rank", str(node_rank)],
        env=env,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches the job alone, which ends its agents in order
        preexec_fn=lambda: die_with_parent(signal.SIGTERM, job),  # also if the job dies while the agent still starts
    )


@dataclass(frozen=True)
class Allocation:
    """The first nodes of a Slurm job, as many as the scale has, used as ThisMachine is; this process may be on none."""

    job_id: str
    job: ScaleJob
    until_s: float = math.inf  # on the monotonic clock, when the runs' time is up; no query to Slurm takes longer
    _heads: dict[str, tuple[str, list[int]]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def names(self, spec: RunSpec | None = None) -> list[str]:
        """Return the nodes in the order of a job step's tasks, which is Slurm's own; --nodelist cannot change it.

        Asks Slurm, because Snakemake's job step removes SLURM_JOB_NODELIST from the environment. Asks again before each
        job step: srun gives up if the controller does not answer, this waits for it.

        Raises NoRendezvous if there are too few, or Slurm does not answer.
        """
        try:
            names = list(host_names(job_field(self.job_id, "N", self.until_s)))
        except UserError as error:
            problem = error.problems[0]
            look = f"see whether `squeue --me` answers; then {AGAIN}"
            raise NoRendezvous(f"{problem.where}: {problem.what}: {problem.found}", look) from error
        if len(names) < self.job.scale.nodes:
            few = f"job {self.job_id} has {count(len(names), 'node')}, {self.job.scale} needs {self.job.scale.nodes}"
            start = f"snakemake --profile {profile('allocation')}"
            raise NoRendezvous(few, f"start there with `{start}`, which says which salloc has room for all scales")
        return names[: self.job.scale.nodes]

    def agents_per_node(self, spec: RunSpec) -> int:
        return LAUNCHERS[spec.launcher].tasks_per_node(spec)

    def endpoint(self, spec: RunSpec, key: str) -> tuple[str, int]:
        wanted = json.dumps(spec.interface)
        if wanted not in self._heads:
            self._heads[wanted] = self._ask_head(wanted)
        host, ports = self._heads[wanted]
        return host, ports[zlib.crc32(key.encode()) % len(ports)]

    def _ask_head(self, wanted: str) -> tuple[str, list[int]]:
        """Ask on the first node, the only one that knows; once for each interface that a variant uses."""
        hostnames = self.names()
        asked = self._question(hostnames, wanted)
        if undecided(asked.stderr):
            asked = self._question(self.names(), wanted)  # names waits for the controller
        lines = [line for line in printable(asked.stderr).splitlines() if line.strip()]
        own = [line for line in lines if not line.startswith(("srun: ", "slurmstepd"))]
        if asked.returncode != 0 and own:  # the program's words
            said = "; ".join(own)
            raise NoRendezvous(said, _name_service(*hostnames[:2])) if NO_ADDRESS in said else NoRendezvous(said)
        # A prolog or an epilog of the site may have printed other lines.
        answer = next((line for line in asked.stdout.splitlines() if line.startswith('{"host"')), None)
        if asked.returncode != 0 or answer is None:
            said = "; ".join(lines) or f"srun ended with {asked.returncode} and printed {asked.stdout[:80]!r}"
            raise NoRendezvous(said, self._compare)
        endpoint = json.loads(answer)
        host, ports = endpoint["host"], endpoint["ports"]
        if len(hostnames) > 1 and is_loopback(host):
            raise NoRendezvous(f"{host} of {hostnames[0]} is an address that no other node reaches")
        if not ports:
            raise NoRendezvous(f"no free port on {hostnames[0]}", "look at what listens there: ss --listening")
        return host, ports

    def _question(self, hostnames: list[str], wanted: str) -> subprocess.CompletedProcess[str]:
        towards = hostnames[1] if len(hostnames) > 1 else LOOPBACK
        within_s = min(ANSWER_S, max(SHORTEST_ANSWER_S, self.until_s - time.monotonic()))
        question = [sys.executable, str(RENDEZVOUS), "--interface", wanted, "--towards", towards]
        try:
            return subprocess.run(
                [*step_argv(self.job, hostnames[:1], 1, "rendezvous"), *question, "--key", self.job_id],
                env=step_environment(os.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=within_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            message = printable(os.fsdecode(error.stderr or b"")).strip()
            waited = f"waited {within_s:.3g} s for a job step on {hostnames[0]}"
            raise NoRendezvous(f"{waited}: {message}", self._compare) from error

    @property
    def _compare(self) -> str:
        return f"compare `node` in cluster.yaml with what the job has: scontrol show job --details {self.job_id}"

    def starters(
        self, directory: RunDirectory, spec: RunSpec, program: Path = AGENT, per_node: int | None = None
    ) -> list[Starter]:
        kind = "run" if program == AGENT else program.stem
        name = "-".join((kind, *Path(spec.name).parts, str(os.getpid())))
        nodes = self.names()
        step, agent = partial(step_argv, self.job, nodes, name=name), _agent_command(directory, program)
        argv = [*step(self.agents_per_node(spec) if per_node is None else per_node), *agent]
        # srun does not set this one for its tasks; scripts expect it, as in a job of the job step's shape.
        env = {**step_environment(os.environ), "SLURM_JOB_NUM_NODES": str(len(nodes))}
        return [partial(JobStep, self.job_id, name, argv, env, directory.launcher_log)]


def _name_service(node: str, other: str) -> str:
    look = f"on {node}, `getent hosts {other}` must print an address (srun --nodelist={node} getent hosts {other})"
    return f"{look}; if it does not, ask your site to correct /etc/hosts or DNS there, or {leave_out(node)}"


class JobStep(AgentProcess):
    """An srun. ``terminate`` ends its tasks in order; SIGTERM to srun itself would kill them at once.

    Its tasks go on if srun is killed, and srun waits for ever for a step daemon that is stopped or died.
    """

    def __init__(self, job_id: str, name: str, argv: list[str], env: Mapping[str, str], log: Path) -> None:
        """Raises NotWritten if the log, of srun's own messages, cannot be opened."""
        self._job_id, self._name = job_id, name
        with writing(log):
            messages = log.open("ab")
        with messages:
            super().__init__(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                start_new_session=True,  # Ctrl-C reaches the job alone
                # In an allocation the job step could outlive the job.
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),
            )

    def terminate(self) -> None:
        """Send SIGTERM to the job step's tasks; to srun if there is no such job step, and so nothing to lose."""
        if not self._cancel("TERM"):
            super().terminate()

    def have_ended(self, within_s: float) -> bool:
        until_s = time.monotonic() + within_s
        if not super().have_ended(within_s):
            return False
        # The job step of an srun that ended well has ended; without an answer of Slurm it is not waited for.
        while self.returncode != 0 and self._ids():
            if time.monotonic() >= until_s:
                return False
            time.sleep(LOOK_S)
        return True

    def kill(self) -> None:
        """Send SIGKILL to its tasks and wait until Slurm shows them no more, for KILLED_S at most; then end srun."""
        until_s = time.monotonic() + KILLED_S
        while self._cancel("KILL") and time.monotonic() < until_s:
            time.sleep(LOOK_S)
        super().terminate()  # after SIGKILL, tasks that Slurm has not ended would go on
        if not super().have_ended(KILLED_S):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # it is stopped, perhaps with its own child

    def _cancel(self, signame: str) -> bool:
        """Send a signal to the job step's tasks; return False if Slurm shows no such job step, or does not answer."""
        ids = self._ids()
        if ids:
            # Its exit code is ignored: it may be 1 although the signal has arrived.
            with contextlib.suppress(SlurmError):
                run_command(["scancel", f"--signal={signame}", *ids], ENDING_ANSWER_S)
        return bool(ids)

    def _ids(self) -> list[str]:
        """Return the id of the job step; none if Slurm does not show it, or does not answer."""
        try:
            steps = squeue("ij", "--steps", f"--jobs={self._job_id}", within_s=ENDING_ANSWER_S)
        except SlurmError:
            return []
        return [step for step, name in steps if name == self._name]


Nodes = ThisMachine | Allocation
"""The nodes of a scale's job, or their simulation."""


def write_run_file(
    nodes: Nodes, job: ScaleJob, spec: RunSpec, directory: RunDirectory, identity: Job, key: str | None, **more: Any
) -> RunFile:
    """Write the run.json of processes that these nodes start; return it. Raises NoRendezvous.

    key: different for each start, so that ports and rendezvous of two starts differ; None: without an endpoint, where
    there is none. more: fields of RunFile that have a default.
    """
    host, port = ("", 0) if key is None else nodes.endpoint(spec, key)
    names = [f"node {k}" for k in range(spec.nodes)] if key is None else nodes.names(spec)
    places = Places.here(directory.path)
    run = RunFile(
        schema_version=2,
        spec=spec,
        spec_hash=spec.hash,
        job=identity,
        rendezvous=Rendezvous(id=(key or "none").replace("/", "."), host=host, port=port),
        start_directory=str(places.start),
        run_directory=str(places.run),
        nodes=tuple(names),
        agents_per_node=nodes.agents_per_node(spec),
        max_log_mb_per_node=job.max_log_mb_per_node,
        memory_mb=job.memory_mb,
        **more,
    )
    write_json(directory.run, run.model_dump())
    return run


def nodes_of(environment: Mapping[str, str], job: ScaleJob) -> Nodes:
    """Return the nodes of this process's allocation; nodes simulated on this machine if it has none."""
    job_id = environment.get("SLURM_JOB_ID")
    return Allocation(job_id, job) if job_id else ThisMachine(local_job_id())
