"""What one node has, collected by its own process as an ordinary user, without a judgement; and its connection to the
head.
"""

from __future__ import annotations

import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
from pydantic import Field

from ddp_ladder.common.files import check_room, file_text, nearest
from ddp_ladder.common.model import Model, Several
from ddp_ladder.node.launch import Places
from ddp_ladder.node.network import address, interface_towards, is_loopback, node_name
from ddp_ladder.node.software import SetUpError, environment
from ddp_ladder.node.wrapper import WrapperTrial, try_wrapper
from ddp_ladder.platform.accelerators import ACCELERATORS, Accelerator, NodeGpu
from ddp_ladder.records.raw_models import RawFile, RunFile
from ddp_ladder.settings.terms import Interface, interface_on

MESSAGE_BYTES = 256 * 1024  # the MTU of a loopback interface is 65536
EXCHANGE_S = 5.0  # for the message, and for the answer
UNREACHABLE_S = 3.0  # routes and neighbours settle in this time; a head that only starts has until the deadline
RETRY_S = 0.1
LOOK_S = 0.5  # between two looks at what the other nodes have told


class HeadServer(socketserver.ThreadingTCPServer):
    """The head's side. Raises OSError if it cannot listen there."""

    allow_reuse_address = True  # as torch's store: closed connections do no harm
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: str, port: int, token: str, others: int) -> None:
        self.request_queue_size = max(128, others)
        super().__init__((address, port), _Echo)
        self.message = _message(token)
        self.answered = threading.Semaphore(0)
        self._others = others
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": RETRY_S}, daemon=True).start()

    def finish(self, until_s: float, have_all_told: Callable[[], bool]) -> None:
        """Wait until all other nodes have been answered, or have told that they will not come; then close.

        until_s: at most until this time on the monotonic clock.
        """
        waiting = self._others
        while waiting and time.monotonic() < until_s and not have_all_told():
            waiting -= self.answered.acquire(timeout=min(LOOK_S, max(0.0, until_s - time.monotonic())))
        self.shutdown()
        self.server_close()


class _Echo(socketserver.StreamRequestHandler):
    timeout = EXCHANGE_S
    server: HeadServer

    def handle(self) -> None:
        with suppress(OSError):
            if self.rfile.read(MESSAGE_BYTES) == self.server.message:
                self.wfile.write(self.server.message)
                self.rfile.read(1)  # the node hangs up first, so that the head's port stays free
                self.server.answered.release()


def reach_head(own: str, head: tuple[str, int], token: str, until_s: float) -> None:
    """Send the message to the head and read it again. Raises OSError that says why it did not come back.

    own: the address of this node that the connection starts from. until_s: on the monotonic clock.
    """
    with _connect(own, head, until_s) as connection, connection.makefile("rb") as answers:
        connection.settimeout(2 * EXCHANGE_S)
        answer = b""
        with suppress(OSError):
            connection.sendall(_message(token))
            answer = answers.read(MESSAGE_BYTES)
        if answer != _message(token):
            raise OSError("it connects, but large packets do not arrive, or another program listens there")


def _connect(own: str, head: tuple[str, int], until_s: float) -> socket.socket:
    unreachable_until_s = min(until_s, time.monotonic() + UNREACHABLE_S)
    while True:
        try:
            return socket.create_connection(head, max(0.1, until_s - time.monotonic()), (own, 0))
        except TimeoutError:
            raise OSError("no answer in time") from None
        except ConnectionRefusedError as error:
            if time.monotonic() > until_s:
                raise OSError(error.strerror) from error
        except OSError as error:
            if time.monotonic() > unreachable_until_s:
                raise OSError(error.strerror or str(error)) from error
        time.sleep(RETRY_S)


def _message(token: str) -> bytes:
    return f"ddp-ladder preflight {token}\n".encode().ljust(MESSAGE_BYTES, b"-")


# --- What one node has, collected by its own process as an ordinary user, without a judgement.
# Null means that the fact could not be read, or that the question does not arise on this node.


SHARED_MEMORY = Path("/dev/shm")
MARKER_S = 3.0  # a network file system may show a new file to other nodes this late


class GpusFacts(Model):
    """The node's GPUs."""

    gpus: Several[NodeGpu] = ()  # none without an error: there is no program of the driver
    visible_devices: str | None = None  # the variable that limits them, in the job step
    error: str | None = None  # why the driver's program gave no answer

    def visible(self, accelerator: Accelerator) -> list[NodeGpu]:
        """Return the GPUs that the job step may use."""
        return [self.gpus[k] for k in accelerator.visible_gpus(self.visible_devices, [gpu.uuid for gpu in self.gpus])]


class InterfaceFacts(Model):
    """The network interface that this node uses."""

    name: str | None
    address: str | None = None
    error: str | None = None  # why it cannot be used


class DirectoryFacts(Model):
    """A directory that runs write to."""

    path: str
    free_bytes: int | None = None
    error: str | None = None  # why a file of 1 MB could not be written there


class NodeFacts(RawFile):
    """What one node has (facts/node<k>.json)."""

    node: str
    host: str
    node_rank: int
    in_slurm: bool
    cpus: int
    gpus: GpusFacts | None
    interface: InterfaceFacts
    head: str = Field(description="The head's address:port, on the interface that it uses.")
    link_error: str | None = Field(description="Why the head cannot listen there, or why this node does not reach it.")
    shared_memory: DirectoryFacts
    run_directory: DirectoryFacts
    marker_seen: bool = Field(description="The job's file in the shared directory is there.")
    host_addresses: Several[str] = Field(description="What the host name resolves to; empty if it does not.")
    wrappers: Several[WrapperTrial] = ()
    head_addresses: Several[str] | None = Field(description="What the head's name resolves to here; null on the head.")


def collect(run: RunFile, node_rank: int, marker: Path) -> NodeFacts:
    """Return the facts of this node, after the other nodes have reached it if it is the head.

    marker: a file in the shared directory that the job has written before it started the nodes; its name, new in each
    job, is their token.
    """
    assert run.preflight is not None
    spec, head = run.spec, (run.rendezvous.host, run.rendezvous.port)
    accelerator = ACCELERATORS[spec.device]
    until_s = time.monotonic() + run.preflight.timeout_s
    interface = interface_facts(spec.interface, head[0], several=len({*run.nodes}) > 1)
    server: HeadServer | None = None
    link_error = None
    try:
        if interface.address and node_rank == 0:
            server = HeadServer(*head, marker.name, spec.nodes - 1)
        elif interface.address:
            reach_head(interface.address, head, marker.name, until_s)
    except OSError as error:
        link_error = error.strerror or str(error)
    try:
        return NodeFacts(
            **run.identity,
            node=node_name(),
            host=socket.gethostname(),
            node_rank=node_rank,
            in_slurm="SLURM_JOB_ID" in os.environ,
            cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            interface=interface,
            head=f"{head[0]}:{head[1]}",
            link_error=link_error,
            gpus=gpus_facts(accelerator) if accelerator.is_gpu else None,
            shared_memory=directory_facts(SHARED_MEMORY),
            run_directory=directory_facts(Path(run.run_directory)),
            marker_seen=is_seen(marker),
            wrappers=_tried(run, until_s),
            host_addresses=resolved(socket.gethostname()),
            head_addresses=resolved(run.nodes[0]) if node_rank > 0 else None,
        )
    finally:
        if server is not None:
            others = [marker.with_name(f"node{rank}.json") for rank in range(1, spec.nodes)]
            server.finish(until_s, lambda: all(file.exists() for file in others))


def _tried(run: RunFile, until_s: float) -> tuple[WrapperTrial, ...]:
    """Return what the wrappers of the job's runs do here; nothing if the site's software fails, which ranks report."""
    assert run.preflight is not None
    places = Places(Path(run.start_directory), Path(run.run_directory))
    try:
        env = environment(run.spec, os.environ) if run.preflight.wrappers else {}
    except SetUpError:
        return ()
    share_s = (until_s - time.monotonic()) / (1 + len(run.preflight.wrappers))
    return tuple(try_wrapper(each, run.spec, places, env, max(1.0, share_s)) for each in run.preflight.wrappers)


def interface_facts(wanted: Interface, head: str, several: bool) -> InterfaceFacts:
    """Return the facts of the interface that a run would use on this node. head: an address. several: of nodes."""
    name = interface_on(wanted, node_name())
    try:
        name = interface_towards(wanted, head)
        own = address(name)
        stats = psutil.net_if_stats().get(name)
        if stats and not stats.isup:
            raise OSError(f"interface {name} ({own}) is down")
        if several and is_loopback(own):
            raise OSError(f"interface {name} is loopback ({own})")
    except OSError as error:
        return InterfaceFacts(name=None if name == "auto" else name, error=str(error))
    return InterfaceFacts(name=name, address=own)


def directory_facts(path: Path) -> DirectoryFacts:
    """Return the room in a directory, or in its nearest existing parent; writes 1 MB there, and removes it."""
    parent = nearest(path)
    try:
        room = os.statvfs(parent)
        check_room(parent)
    except OSError as error:
        return DirectoryFacts(path=str(path), error=error.strerror or str(error))
    return DirectoryFacts(path=str(path), free_bytes=room.f_bavail * room.f_frsize)


def is_seen(marker: Path, within_s: float = MARKER_S) -> bool:
    """Return True if the file is there in time."""
    until_s = time.monotonic() + within_s
    while file_text(marker) is None:
        if time.monotonic() > until_s:
            return False
        time.sleep(RETRY_S)
    return True


def resolved(name: str) -> tuple[str, ...]:
    """Return the IPv4 addresses of a name; none if it does not resolve."""
    try:
        entries = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))


def gpus_facts(accelerator: Accelerator) -> GpusFacts:
    """Return the facts of the GPUs."""
    visible = os.environ.get(accelerator.visible_variable or "")
    try:
        return GpusFacts(gpus=accelerator.gpus(), visible_devices=visible)
    except OSError as error:
        return GpusFacts(visible_devices=visible, error=str(error))
