"""What the facts of the nodes mean for the scale's runs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ddp_ladder.common.formats import count, grouped, hostlist, in_short, short_list
from ddp_ladder.common.messages import leave_out
from ddp_ladder.node import wrapper
from ddp_ladder.node.network import is_loopback
from ddp_ladder.plan.plan import RunSpec, ScaleJob
from ddp_ladder.platform.accelerators import ACCELERATORS
from ddp_ladder.preflight.location import locate, most_at_once
from ddp_ladder.preflight.node_facts import DirectoryFacts, NodeFacts
from ddp_ladder.preflight.result import Kind, PreflightFinding, error, warning

MIB, GIB = 2**20, 2**30
LITTLE_ROOM = GIB  # eight GPUs with eight workers each fill less of /dev/shm; a node's logs may take 100 MB in each run
USED_MIB = 1024  # an idle GPU shows less than this, with its driver and a monitor of the site
OUT = leave_out()  # in what to do: the nodes of the finding are named in its place
TELL = f"{OUT}, and tell the site's support"
NAMED = 2  # of texts that differ from node to node


def node_findings(spec: RunSpec, job: ScaleJob, facts: Mapping[str, NodeFacts | None]) -> tuple[PreflightFinding, ...]:
    """Return the findings, errors first. facts: by the nodes' names in findings, in their order; None: it left none."""
    known = {name: fact for name, fact in facts.items() if fact}
    several = len({fact.node for fact in known.values()}) > 1
    found = [_NO_ANSWER.replace(place=name) for name, fact in facts.items() if fact is None]
    found += _network(spec, known)
    for name, fact in known.items():
        found += [finding.replace(place=name) for finding in _of_node(spec, job, fact, several, next(iter(facts)))]
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


def _merged(findings: Iterable[PreflightFinding], nodes: Sequence[str]) -> tuple[PreflightFinding, ...]:
    """Return one finding for each cause, in the order of its first node, with all its nodes.

    What asks for the same and advises the same has one cause, also if each node has figures and names of its own in it.
    """
    causes = grouped(((found.severity, found.kind, found.wanted, found.next), found) for found in findings)
    return tuple(_of_all(alike, nodes) for alike in causes.values())


def _of_all(alike: Sequence[PreflightFinding], nodes: Sequence[str]) -> PreflightFinding:
    first, names = alike[0], [*dict.fromkeys(found.place for found in alike if found.place)]
    texts = grouped((found.measured, found.place) for found in alike)
    each = [f"{text} ({short_list(hostlist(where))})" for text, where in texts.items()]
    return first.replace(
        place=hostlist(names),
        measured=first.measured if len(texts) == 1 else in_short(each, NAMED, "; "),
        next=first.next.replace(OUT, leave_out(*names) if len(names) < len(nodes) else "ask for other nodes"),
        kind=first.kind if first.kind != "node" or len(names) <= most_at_once(len(nodes)) else None,
    )


def _network(spec: RunSpec, facts: Mapping[str, NodeFacts]) -> Iterator[PreflightFinding]:
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


def _unreached(facts: Mapping[str, NodeFacts], head: str, reached: Mapping[str, bool]) -> Iterator[PreflightFinding]:
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


def _without_directory(facts: Mapping[str, NodeFacts]) -> Iterator[PreflightFinding]:
    """Yield the nodes that do not see the job's file. It is the node's fault only if others than the head see it."""
    is_shared = any(fact.marker_seen for fact in facts.values() if fact.node_rank > 0)
    for name, fact in facts.items():
        if not fact.marker_seen:
            advice = "set results in config.yaml to a directory on the shared file system"
            what = f"it does not see the job's file in {fact.run_directory.path}"
            kind: Kind = "node" if is_shared else "settings"
            yield error(what, "a directory that all nodes share", advice, name, kind)


def _of_node(spec: RunSpec, job: ScaleJob, fact: NodeFacts, several: bool, head: str) -> Iterator[PreflightFinding]:
    if several:
        yield from _host_names(fact, head)
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
    for trial in fact.wrappers:
        for found in wrapper.findings(trial):
            yield PreflightFinding(**dict(found), kind="software")


def _host_names(fact: NodeFacts, head: str) -> Iterator[PreflightFinding]:
    wanted = "the node's address on a network that all nodes share"
    if fact.head_addresses is not None and all(map(is_loopback, fact.head_addresses)):
        what = f"resolves {head} to {fact.head_addresses[0]}" if fact.head_addresses else f"does not resolve {head}"
        advice = f"have the site's DNS or /etc/hosts corrected; until then {OUT}"
        yield error(f"it {what}", wanted, advice, kind="node")
    if loopback := next(filter(is_loopback, fact.host_addresses), None):
        advice = f"have its line in /etc/hosts corrected; until then {OUT}"
        yield error(f"the host name {fact.host} resolves to {loopback}", wanted, advice, kind="node")


def _gpus(spec: RunSpec, fact: NodeFacts) -> Iterator[PreflightFinding]:
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


def _directories(spec: RunSpec, fact: NodeFacts) -> Iterator[PreflightFinding]:
    memory, disk = fact.shared_memory, fact.run_directory
    mount = "it is a mount option of the node, or of the container (software.container.args): --shm-size, size="
    yield from _room(memory, mount, LITTLE_ROOM if ACCELERATORS[spec.device].is_gpu else 0)
    yield from _room(disk, f"free some space: df -h {disk.path}; see your quota there", LITTLE_ROOM)


def _room(directory: DirectoryFacts, advice: str, least: int) -> Iterator[PreflightFinding]:
    if directory.error is not None:
        what = f"{directory.path} cannot be written: {directory.error}"
        yield error(what, "a directory that this job may write", advice, kind="node")
    elif directory.free_bytes is not None and directory.free_bytes < least:
        yield warning(f"{directory.path} has {directory.free_bytes // MIB} MB free", f"{least // MIB} MB", advice)


def _compared(spec: RunSpec, facts: Mapping[str, NodeFacts]) -> Iterator[PreflightFinding]:
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
