"""What one node has, collected by its own process as an ordinary user, and what that means for the scale's runs."""

from __future__ import annotations

import os
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from pydantic import Field

from ddp_ladder.common.files import check_room, file_text, nearest
from ddp_ladder.common.findings import Finding, PreflightKind
from ddp_ladder.common.formats import count, grouped, hostlist, in_short, short_list
from ddp_ladder.common.messages import leave_out
from ddp_ladder.common.model import Model, Several
from ddp_ladder.node.launch import address, interface_towards, is_loopback, node_name
from ddp_ladder.plan.plan import RunSpec, ScaleJob
from ddp_ladder.platform.accelerators import ACCELERATORS, Accelerator, NodeGpu
from ddp_ladder.preflight.result import error, locate, most_at_once, warning
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
        )
    finally:
        if server is not None:
            others = [marker.with_name(f"node{rank}.json") for rank in range(1, spec.nodes)]
            server.finish(until_s, lambda: all(file.exists() for file in others))


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


def gpus_facts(accelerator: Accelerator) -> GpusFacts:
    """Return the facts of the GPUs."""
    visible = os.environ.get(accelerator.visible_variable or "")
    try:
        return GpusFacts(gpus=accelerator.gpus(), visible_devices=visible)
    except OSError as error:
        return GpusFacts(visible_devices=visible, error=str(error))


MIB, GIB = 2**20, 2**30
LITTLE_ROOM = GIB  # eight GPUs with eight workers each fill less of /dev/shm; a node's logs may take 100 MB in each run
USED_MIB = 1024  # an idle GPU shows less than this, with its driver and a monitor of the site
OUT = leave_out()  # in what to do: the nodes of the finding are named in its place
TELL = f"{OUT}, and tell the site's support"
NAMED = 2  # of texts that differ from node to node


def node_findings(spec: RunSpec, job: ScaleJob, facts: Mapping[str, NodeFacts | None]) -> tuple[Finding, ...]:
    """Return the findings, errors first. facts: by the nodes' names in findings, in their order; None: it left none."""
    known = {name: fact for name, fact in facts.items() if fact}
    found = [_NO_ANSWER.replace(place=name) for name, fact in facts.items() if fact is None]
    found += _network(spec, known)
    for name, fact in known.items():
        found += [finding.replace(place=name) for finding in _of_node(spec, job, fact)]
    found += _without_directory(known)
    found += _compared(spec, known)
    return _merged(sorted(found, key=lambda finding: finding.severity != "error"), [*facts])


_NO_ANSWER = error(
    "it left no answer",
    "an answer within preflight.timeout_s of config.yaml",
    "read the preflight's log, and see whether the node works: scontrol show node; a driver or a file system may hang; "
    f"else {OUT}",
    kind="node",
)


def _merged(findings: Iterable[Finding], nodes: Sequence[str]) -> tuple[Finding, ...]:
    """Return one finding for each cause, in the order of its first node, with all its nodes.

    What asks for the same and advises the same has one cause, also if each node has figures and names of its own in it.
    """
    causes = grouped(((found.severity, found.kind, found.wanted, found.next), found) for found in findings)
    return tuple(_of_all(alike, nodes) for alike in causes.values())


def _of_all(alike: Sequence[Finding], nodes: Sequence[str]) -> Finding:
    first, names = alike[0], [*dict.fromkeys(found.place for found in alike if found.place)]
    texts = grouped((found.measured, found.place) for found in alike)
    each = [f"{text} ({short_list(hostlist(where))})" for text, where in texts.items()]
    return first.replace(
        place=hostlist(names),
        measured=first.measured if len(texts) == 1 else in_short(each, NAMED, "; "),
        next=first.next.replace(OUT, leave_out(*names) if len(names) < len(nodes) else "ask for other nodes"),
        kind=first.kind if first.kind != "node" or len(names) <= most_at_once(len(nodes)) else "cause unknown",
    )


def _network(spec: RunSpec, facts: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Yield interfaces that cannot be used, and what keeps nodes from the head, unless the head explains it."""
    head = next((fact for fact in facts.values() if fact.node_rank == 0), None)
    explained = head is None
    reached: dict[str, bool] = {}
    for name, fact in facts.items():
        if fact.interface.error is not None:
            wanted = "an interface that is up, with an IPv4 address on the network of the other nodes"
            advice = "correct network.interface in cluster.yaml, which may name one for each node"
            advice += "; if it is down, tell the site's support"
            is_named = not isinstance(spec.interface, str) and fact.node in spec.interface
            yield error(fact.interface.error, wanted, advice, name, "settings" if is_named else "node")
            explained |= fact is head
        elif fact is head and fact.link_error:
            port = fact.head.rpartition(":")[2]
            advice = f"end what listens there, or start again for another port: ss --listening --tcp sport = {port}"
            yield error(f"rendezvous port {port}: {fact.link_error}", "a port that is free", advice, name)
            explained = True
        elif fact is not head:
            reached[name] = fact.link_error is None
    if head is not None and not explained and not all(reached.values()):
        yield from _unreached(facts, next(iter(facts)), reached)


def _unreached(facts: Mapping[str, NodeFacts], head: str, reached: Mapping[str, bool]) -> Iterator[Finding]:
    """Yield the nodes whose own link is broken, or else what the network is cut into. reached: the head, by node."""
    names = [head, *reached]
    found = locate({(0, k): works for k, works in enumerate(reached.values(), start=1)})
    wanted = "a TCP connection from every node to the head, over network.interface of cluster.yaml"
    advice = (
        "name in network.interface an interface on which the nodes reach each other; see the site's firewall between "
        "compute nodes, and for lost packets the MTU of its switches"
    )
    cut = [name for name, works in reached.items() if not works]
    why = facts[cut[0]].link_error
    at = f"the head {head} at {facts[head].head}"
    if found.links:  # of two nodes
        yield error(f"{cut[0]} does not reach {at}: {why}", wanted, advice, hostlist(names), "link")
    elif found.nodes == (0,):
        yield error(f"no other node reaches {at}: {why}", wanted, advice, head, "network")
    elif len(cut) > most_at_once(len(facts)):
        sides = hostlist([head, *(name for name, works in reached.items() if works)]), hostlist(cut)
        what = f"{len(cut)} of {len(names)} nodes do not reach {at} ({why}): the network is cut between "
        what += " and ".join(map(short_list, sides))
        yield error(what, wanted, advice, kind="network").replace(evidence=sides)
    else:
        for name in cut:
            what = f"it does not reach the head at {facts[head].head}: {facts[name].link_error}"
            yield error(what, wanted, f"{OUT}, and report its link to your site; else {advice}", name, "node")


def _without_directory(facts: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Yield the nodes that do not see the job's file. It is the node's fault only if others than the head see it."""
    is_shared = any(fact.marker_seen for fact in facts.values() if fact.node_rank > 0)
    for name, fact in facts.items():
        if not fact.marker_seen:
            advice = "set results in config.yaml to a directory on the shared file system"
            what = f"it does not see the job's file in {fact.run_directory.path}"
            kind: PreflightKind = "node" if is_shared else "settings"
            yield error(what, "a directory that all nodes share", advice, name, kind)


def _of_node(spec: RunSpec, job: ScaleJob, fact: NodeFacts) -> Iterator[Finding]:
    if ACCELERATORS[spec.device].is_gpu:
        yield from _gpus(spec, fact)
    if fact.cpus < job.cpus:
        advice = "lower node.cpus in cluster.yaml to what this machine has"
        if fact.in_slurm:
            advice = "compare node.cpus with CPUTot and ThreadsPerCore of `scontrol show node`"
        wanted = f"{job.cpus}, the scale's share of node.cpus in cluster.yaml"
        what = f"the job step has {count(fact.cpus, 'CPU')}"
        yield (error if fact.in_slurm else warning)(what, wanted, advice, kind="settings")
    yield from _directories(spec, fact)


def _gpus(spec: RunSpec, fact: NodeFacts) -> Iterator[Finding]:
    gpus, accelerator = fact.gpus, ACCELERATORS[spec.device]
    if gpus is None or gpus.error is not None:
        what = f"{accelerator.program}: {gpus and gpus.error}"
        yield error(what, "an answer: the driver and all GPUs work", TELL, kind="node")
        return
    visible, variable = gpus.visible(accelerator), accelerator.visible_variable
    if gpus.gpus and len(visible) < spec.gpus_per_node:
        limit = gpus.visible_devices
        yield error(
            f"{len(visible)} of {count(spec.gpus_per_node, 'GPU')} visible"
            + ("" if limit is None else f" ({variable}={limit})"),
            f"{spec.gpus_per_node}: every process of a node sees all its GPUs",
            f"remove --gpus-per-task and --gpu-bind from slurm.extra in cluster.yaml, and {variable} from "
            "software.setup; then compare node.gpus and node.gres with `scontrol show node`",
            kind="node" if len(gpus.gpus) < spec.gpus_per_node else "settings",
        )
    for gpu in visible:
        if gpu.memory_used_mib is not None and gpu.memory_used_mib > USED_MIB:
            yield warning(
                f"GPU {gpu.index}: {gpu.memory_used_mib:.0f} MiB are in use",
                f"less than {USED_MIB} MiB before a run",
                "end your own processes there, or ask for whole GPUs (node.gres in cluster.yaml)",
            )


def _directories(spec: RunSpec, fact: NodeFacts) -> Iterator[Finding]:
    memory, disk = fact.shared_memory, fact.run_directory
    mount = "it is a mount option of the node, or of the container (software.container.args): --shm-size, size="
    yield from _room(memory, mount, LITTLE_ROOM if ACCELERATORS[spec.device].is_gpu else 0)
    yield from _room(disk, f"free some space: df -h {disk.path}; see your quota there", LITTLE_ROOM)


def _room(directory: DirectoryFacts, advice: str, least: int) -> Iterator[Finding]:
    if directory.error is not None:
        what = f"{directory.path} cannot be written: {directory.error}"
        yield error(what, "a directory that this job may write", advice, kind="node")
    elif directory.free_bytes is not None and directory.free_bytes < least:
        yield warning(f"{directory.path} has {directory.free_bytes // MIB} MB free", f"{least // MIB} MB", advice)


def _compared(spec: RunSpec, facts: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Compare GPUs and their driver between the nodes."""
    accelerator = ACCELERATORS[spec.device]
    seen = {name: fact.gpus.visible(accelerator) for name, fact in facts.items() if fact.gpus}
    gpus = {name: visible for name, visible in seen.items() if visible}
    advice = "ask for one kind of node: slurm.constraint, or the type in node.gres (gpu:a100), in cluster.yaml"
    models = {name: ", ".join(sorted({gpu.name for gpu in visible})) for name, visible in gpus.items()}
    drivers = {name: f"driver {visible[0].driver}" for name, visible in gpus.items()}
    for values, wanted, next_step in ((models, "one GPU model on all nodes", advice), (drivers, "one driver", TELL)):
        usual = Counter(values.values()).most_common(1)
        for name, own in values.items():
            if own != usual[0][0]:
                yield warning(f"it has {own}, the others {usual[0][0]}", wanted, next_step, name)
