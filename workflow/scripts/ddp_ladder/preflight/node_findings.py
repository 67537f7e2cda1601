"""What the facts of the nodes mean for the scale's runs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ddp_ladder.common.formats import count, in_short
from ddp_ladder.common.grouping import grouped
from ddp_ladder.common.messages import Finding, leave_out
from ddp_ladder.node import wrapper
from ddp_ladder.node.network import is_loopback
from ddp_ladder.plan.plan import RunSpec, ScaleJob
from ddp_ladder.platform.accelerators import ACCELERATORS
from ddp_ladder.preflight.node_facts import DirectoryFacts, NodeFacts
from ddp_ladder.preflight.result import error, warning

MIB, GIB = 2**20, 2**30
LITTLE_ROOM = GIB  # eight GPUs with eight workers each fill less of /dev/shm; a node's logs may take 100 MB in each run
USED_MIB = 1024  # an idle GPU shows less than this, with its driver and a monitor of the site
TELL = f"{leave_out()}, and tell the site's support"


def node_findings(spec: RunSpec, job: ScaleJob, facts: Mapping[str, NodeFacts | None]) -> tuple[Finding, ...]:
    """Return the findings, errors first. facts: by the nodes' names in findings, in their order; None: it left none."""
    known = {name: fact for name, fact in facts.items() if fact}
    several = len({fact.node for fact in known.values()}) > 1
    found = [_NO_ANSWER.replace(place=name) for name, fact in facts.items() if fact is None]
    found += _network(known)
    for name, fact in known.items():
        found += [finding.replace(place=name) for finding in _of_node(spec, job, fact, several, next(iter(facts)))]
    found += _compared(spec, known)
    return _merged(sorted(found, key=lambda finding: finding.severity != "error"))


_NO_ANSWER = error(
    "it left no answer",
    "an answer within preflight.timeout_s of config.yaml",
    "read the preflight's log, and see whether the node works: scontrol show node; a driver or a file system may hang",
)


def _merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return each finding once, in the order of its first node, with the names of all its nodes."""
    nodes = grouped(((found.severity, found.measured, found.wanted, found.next), found) for found in findings)
    return tuple(same[0].replace(place=in_short([found.place for found in same])) for same in nodes.values())


def _network(facts: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Yield interfaces that cannot be used, and nodes that do not reach the head; each cause once."""
    head = next((fact for fact in facts.values() if fact.node_rank == 0), None)
    explained = head is None
    for name, fact in facts.items():
        if fact.interface.error is not None:
            wanted = "an interface that is up, with an IPv4 address on the network of the other nodes"
            advice = "correct network.interface in cluster.yaml, which may name one for each node"
            yield error(fact.interface.error, wanted, f"{advice}; if it is down, tell the site's support", name)
            explained |= fact is head
        elif fact is head and fact.link_error:
            port = fact.head.rpartition(":")[2]
            advice = f"end what listens there, or start again for another port: ss --listening --tcp sport = {port}"
            yield error(f"rendezvous port {port}: {fact.link_error}", "a port that is free", advice, name)
            explained = True
        elif fact.link_error and not explained:
            yield error(
                f"it does not reach the head at {fact.head}: {fact.link_error}",
                "a TCP connection from every node to the head, over network.interface of cluster.yaml",
                "name in network.interface an interface on which the nodes reach each other; see the site's firewall "
                "between compute nodes, and for lost packets the MTU of its switches",
                name,
            )


def _of_node(spec: RunSpec, job: ScaleJob, fact: NodeFacts, several: bool, head: str) -> Iterator[Finding]:
    if several:
        yield from _host_names(fact, head)
    if ACCELERATORS[spec.device].is_gpu:
        yield from _gpus(spec, fact)
    if fact.cpus < job.cpus:
        advice = "lower node.cpus in cluster.yaml to what this machine has"
        if fact.in_slurm:
            advice = "compare node.cpus with CPUTot and ThreadsPerCore of `scontrol show node`"
        wanted = f"{job.cpus}, the scale's share of node.cpus in cluster.yaml"
        yield (error if fact.in_slurm else warning)(f"the job step has {count(fact.cpus, 'CPU')}", wanted, advice)
    yield from _directories(spec, fact)
    for trial in fact.wrappers:
        yield from wrapper.findings(trial)


def _host_names(fact: NodeFacts, head: str) -> Iterator[Finding]:
    wanted = "the node's address on a network that all nodes share"
    if fact.head_addresses is not None and all(map(is_loopback, fact.head_addresses)):
        what = f"resolves {head} to {fact.head_addresses[0]}" if fact.head_addresses else f"does not resolve {head}"
        advice = f"have the site's DNS or /etc/hosts corrected; until then {leave_out()}"
        yield error(f"it {what}", wanted, advice)
    if loopback := next(filter(is_loopback, fact.host_addresses), None):
        advice = f"have its line in /etc/hosts corrected; until then {leave_out()}"
        yield error(f"the host name {fact.host} resolves to {loopback}", wanted, advice)


def _gpus(spec: RunSpec, fact: NodeFacts) -> Iterator[Finding]:
    gpus, accelerator = fact.gpus, ACCELERATORS[spec.device]
    if gpus is None or gpus.error is not None:
        yield error(f"{accelerator.program}: {gpus and gpus.error}", "an answer: the driver and all GPUs work", TELL)
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
    if not fact.marker_seen:
        advice = "set results in config.yaml to a directory on the shared file system"
        yield error(f"it does not see the job's file in {disk.path}", "a directory that all nodes share", advice)


def _room(directory: DirectoryFacts, advice: str, least: int) -> Iterator[Finding]:
    if directory.error is not None:
        yield error(
            f"{directory.path} cannot be written: {directory.error}", "a directory that this job may write", advice
        )
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
