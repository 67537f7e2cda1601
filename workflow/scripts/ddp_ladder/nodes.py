"""Where a job's nodes are: agents of their own on this machine, or the nodes of a Slurm allocation."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ddp_ladder.files import RunDirectory
from ddp_ladder.network import address, interface_here, route_to
from ddp_ladder.plan import RunSpec
from ddp_ladder.settings import interface_on

AGENT = Path(__file__).parents[1] / "agent.py"
LOCAL_SITE = "local"
LOOPBACK = "127.0.0.1"


class Nodes(Protocol):
    """What a scale's job needs of its nodes."""

    @property
    def job_id(self) -> str:
        """Identifies the job in every record."""

    def head_address(self, spec: RunSpec) -> str:
        """An address of the first node that every node of the run reaches. Raises OSError."""

    def start(self, directory: RunDirectory, spec: RunSpec) -> list[subprocess.Popen[bytes]]:
        """Start the agents; the processes end when theirs have."""


def nodes_of(site: str, environment: Mapping[str, str]) -> Nodes:
    """The allocation that this process runs in; this machine for the local site and without Slurm."""
    job_id = environment.get("SLURM_JOB_ID")
    return Allocation(job_id) if job_id and site != LOCAL_SITE else ThisMachine(local_job_id())


def local_job_id() -> str:
    """Unique on this machine and readable: local-<host>-<time>-<pid>."""
    return f"local-{socket.gethostname()}-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"


@dataclass(frozen=True)
class ThisMachine:
    """The local site: a node is an agent of its own on this machine."""

    job_id: str

    def head_address(self, spec: RunSpec) -> str:
        return _address_on(spec, LOOPBACK)

    def start(self, directory: RunDirectory, spec: RunSpec) -> list[subprocess.Popen[bytes]]:
        return [start_agent(directory, spec, node_rank) for node_rank in range(spec.nodes)]


@dataclass(frozen=True)
class Allocation:
    """The nodes of the Slurm job that this process runs in, on the first of them."""

    job_id: str

    def head_address(self, spec: RunSpec) -> str:
        if spec.nodes == 1:
            return _address_on(spec, LOOPBACK)
        return _address_on(spec, route_to(self.hostnames()[1]))

    def hostnames(self) -> list[str]:
        """Asked of Slurm, because Snakemake's job step takes SLURM_JOB_NODELIST out of the environment."""
        query = ["squeue", "--noheader", "--jobs", self.job_id, "--format", "%N"]
        nodelist = subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()
        names = subprocess.run(["scontrol", "show", "hostnames", nodelist], check=True, capture_output=True, text=True)
        return names.stdout.split()

    def start(self, directory: RunDirectory, spec: RunSpec) -> list[subprocess.Popen[bytes]]:
        if spec.nodes == 1:
            return [start_agent(directory, spec, 0)]
        # Every count explicitly: Snakemake's job step takes Slurm's own defaults out of the environment.
        command = [
            "srun",
            f"--nodes={spec.nodes}",
            f"--ntasks={spec.nodes}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={spec.threads_per_rank * spec.gpus_per_node}",
            "--kill-on-bad-exit=1",
            "--mpi=none",
            "--export=ALL",
            "--input=none",
            *agent_command(directory),
        ]
        return [subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)]


def agent_command(directory: RunDirectory) -> list[str]:
    """Argument list of the agent; in a step of several tasks it learns from Slurm which node it is."""
    return [sys.executable, str(AGENT), "--run", str(directory.path)]


def start_agent(directory: RunDirectory, spec: RunSpec, node_rank: int) -> subprocess.Popen[bytes]:
    """Start an agent on this machine."""
    env = dict(os.environ)
    if spec.device == "cuda" and spec.nodes > 1:
        first = node_rank * spec.gpus_per_node
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(first + k) for k in range(spec.gpus_per_node))
    return subprocess.Popen(
        [*agent_command(directory), "--node-rank", str(node_rank)],
        env=env,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches the job alone, which ends its agents in order
    )


def _address_on(spec: RunSpec, automatic: str) -> str:
    wanted = interface_on(spec.interface, node_name())
    return automatic if wanted == "auto" else address(wanted)


def node_name() -> str:
    """This node's name as the site's interface map has it."""
    return socket.gethostname().partition(".")[0]


def interface(spec: RunSpec, head: str) -> str:
    """The interface that this node uses for a run: the configured one, or the one that leads to the first node."""
    wanted = interface_on(spec.interface, node_name())
    return interface_here(head) if wanted == "auto" else wanted
