"""Collect what this node has, without a rendezvous: as an ordinary user, within a time limit, and never raising."""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from ddp_ladder.common.files import check_room, file_text, nearest
from ddp_ladder.node.launch import Places
from ddp_ladder.node.network import address, addresses, interface_towards, node_name
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.preflight.gpu_facts import gpus_facts
from ddp_ladder.preflight.leftovers import leftovers
from ddp_ladder.preflight.node_models import DirectoryFacts, InterfaceFacts, NodeFacts, PortFacts
from ddp_ladder.preflight.questions import Questions
from ddp_ladder.preflight.software_facts import software_facts
from ddp_ladder.settings.terms import Interface, interface_on

SHARED_MEMORY = Path("/dev/shm")
MARKER_S = 3.0  # a network file system may show a new file to other nodes this late
RETRY_S = 0.1


@dataclass(frozen=True)
class Marker:
    """A file that the job has written into the shared directory, before it started the nodes, and its content.

    The name must be new in each job: a node may remember that an earlier look found nothing.
    """

    path: Path
    token: str


def collect(
    spec: RunSpec,
    places: Places,
    node_rank: int,
    head: tuple[str, int],
    timeout_s: float,
    marker: Marker | None = None,
) -> NodeFacts:
    """Return the facts of this node.

    head: address and port of the run's rendezvous endpoint. On the head (node_rank 0) the port is taken for a moment:
    call this before ``mesh.meet``, or let ``examine`` call both. places.run: a directory that exists on every node.
    """
    return begin(spec, places, node_rank, head, timeout_s, marker)()


def begin(
    spec: RunSpec,
    places: Places,
    node_rank: int,
    head: tuple[str, int],
    timeout_s: float,
    marker: Marker | None = None,
) -> Callable[[], NodeFacts]:
    """Ask the questions; return a function that waits for the answers. The rendezvous port is free again by then."""
    started_s = time.monotonic()
    port = port_facts(*head) if node_rank == 0 else None
    questions = Questions(timeout_s)
    environment = dict(os.environ)
    ask = questions.ask
    gpus = ask("gpus", lambda: gpus_facts(environment, questions.left_s)) if spec.device == "cuda" else None
    software = ask("software", lambda: software_facts(spec, places, environment, questions.left_s))
    interface = ask("interface", lambda: interface_facts(spec.interface, head[0]))
    shared_memory = ask("shared_memory", lambda: directory_facts(SHARED_MEMORY))
    run_directory = ask("run_directory", lambda: directory_facts(places.run))
    seen = ask("marker_seen", lambda: is_seen(marker)) if marker else None
    names = ask("host_addresses", lambda: resolved(socket.gethostname()))
    left = ask("leftovers", leftovers)

    def answers() -> NodeFacts:
        answer = questions.answer
        return NodeFacts(
            schema_version=1,
            node=node_name(),
            host=socket.gethostname(),
            node_rank=node_rank,
            time_limit_s=timeout_s,
            in_slurm="SLURM_JOB_ID" in os.environ,
            cpus=_cpus(),
            port=port,
            gpus=answer(gpus) if gpus else None,
            interface=answer(interface),
            shared_memory=answer(shared_memory),
            run_directory=answer(run_directory),
            marker_seen=answer(seen) if seen else None,
            host_addresses=answer(names),
            leftovers=answer(left),
            software=answer(software),
            locked_memory_bytes=_limit(resource.RLIMIT_MEMLOCK),
            open_files=_limit(resource.RLIMIT_NOFILE),
            unanswered=tuple(questions.unanswered),
            took_s=time.monotonic() - started_s,
        )

    return answers


def _cpus() -> tuple[int, ...] | None:
    return tuple(sorted(os.sched_getaffinity(0))) if sys.platform == "linux" else None


def _limit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def interface_facts(wanted: Interface, head: str) -> InterfaceFacts:
    """Return the facts of the interface that a run would use on this node. head: an address."""
    here = tuple(sorted(addresses()))
    name = interface_on(wanted, node_name())
    try:
        name = interface_towards(wanted, head)
        own, error = address(name), None
    except OSError as failure:
        own, error = None, str(failure)
    if name == "auto":
        return InterfaceFacts(
            name=None, address=None, exists=False, up=None, mtu=None, speed_mbit_per_s=None, others=here, error=error
        )
    stats = psutil.net_if_stats().get(name)
    return InterfaceFacts(
        name=name,
        address=own,
        exists=stats is not None,
        up=stats.isup if stats else None,
        mtu=stats.mtu if stats else None,
        speed_mbit_per_s=stats.speed or None if stats else None,
        others=tuple(other for other in here if other != name),
        error=error,
    )


def directory_facts(path: Path) -> DirectoryFacts:
    """Return the room in a directory, or in its nearest existing parent; writes 1 MB there, and removes it."""
    there = nearest(path)
    error = None
    try:
        check_room(there)
    except OSError as failure:
        error = failure.strerror or str(failure)
    try:
        room = os.statvfs(there)
    except OSError as failure:
        why = error or failure.strerror
        return DirectoryFacts(path=str(path), free_bytes=None, total_bytes=None, free_inodes=None, error=why)
    return DirectoryFacts(
        path=str(path),
        free_bytes=room.f_bavail * room.f_frsize,
        total_bytes=room.f_blocks * room.f_frsize,
        free_inodes=room.f_favail if room.f_files else None,
        error=error,
    )


def is_seen(marker: Marker, within_s: float = MARKER_S) -> bool:
    """Return True if the file is there, with the head's content, in time."""
    until_s = time.monotonic() + within_s
    while file_text(marker.path) != marker.token:
        if time.monotonic() > until_s:
            return False
        time.sleep(RETRY_S)
    return True


def resolved(name: str) -> tuple[str, ...]:
    """Return the IPv4 addresses of a name; none if it does not resolve."""
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def port_facts(host: str, port: int) -> PortFacts:
    """Return whether a server can listen there; if another process does, which one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's store: closed connections do no harm
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as failure:
            error = failure.strerror or str(failure)
            return PortFacts(port=port, free=False, holder=port_holder(port), error=error)
    return PortFacts(port=port, free=True, holder=None, error=None)


def port_holder(port: int) -> str | None:
    """Return the process that listens on a port, as ``name (pid, user)``; None if this user may not see it."""
    try:
        listening = [
            each.pid
            for each in psutil.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN and each.laddr[1:] == (port,) and each.pid
        ]
        holder = psutil.Process(listening[0])
        return f"{holder.name()} (process {holder.pid} of {holder.username()})"
    except (psutil.Error, OSError, IndexError):
        return None
