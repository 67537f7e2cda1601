"""What the facts of the nodes mean for the scale's runs: each finding names node, finding and key. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddp_ladder.common.formats import count
from ddp_ladder.common.messages import leave_out
from ddp_ladder.node.software import NAMES_THE_CAUSE, TORCH_NOT_INSTALLED
from ddp_ladder.plan.plan import RunSpec, ScaleJob
from ddp_ladder.preflight.finding import PreflightFinding
from ddp_ladder.preflight.gpu_findings import gpu_findings, model_findings
from ddp_ladder.preflight.mesh_findings import mesh_findings
from ddp_ladder.preflight.node_models import NO_TORCH, DirectoryFacts, MeshFacts, NodeFacts
from ddp_ladder.preflight.said import A_NODE, Said, fail, merged, unlike, warn

MIB, GIB = 2**20, 2**30
# A segment of NCCL's for one pair of GPUs is 10 to 33 MB; DataLoader workers pass batches through it as well.
LEAST_SHARED_MEMORY = 64 * MIB
LITTLE_SHARED_MEMORY = GIB  # eight GPUs with eight workers each fill less
LITTLE_DISK = GIB  # a node's logs may take 100 MB in each run
FEW_INODES = 1000  # a run leaves ten files, and two for each node and rank
FEW_OPEN_FILES = 4096  # a rank needs a socket for each peer and channel, and DataLoader workers pass descriptors
MUCH_LOCKED_MEMORY = GIB  # RDMA registers its buffers as locked memory
SHOWN = 3  # leftover processes in a message
LOOPBACK = "127."


def findings(
    spec: RunSpec, job: ScaleJob, facts: Mapping[str, NodeFacts | None], mesh: Mapping[str, MeshFacts | None]
) -> tuple[PreflightFinding, ...]:
    """Return the findings, the causes before their consequences; empty if the nodes are as planned.

    facts: by node, in the order of the node ranks; None for a node that left none. Nodes that are simulated on one
    machine share its name: give each a key of its own (``name (node 1)``). mesh: by the same keys; empty for one node.
    """
    several = len({fact.node for fact in facts.values() if fact}) > 1
    known = {name: fact for name, fact in facts.items() if fact}
    network = {name: [*_network(fact, several)] if fact else [_NO_ANSWER] for name, fact in facts.items()}
    explained = {name for name, said in network.items() if any(each.level == "fail" for each in said)}
    found = [each.on(name) for name, said in network.items() for each in said]
    found += mesh_findings(mesh, known, explained, several)
    found += [each.on(name) for name, fact in known.items() for each in _of_node(spec, job, fact, several)]
    found += _compared(spec, known)
    return merged(sorted(found, key=lambda each: each.level != "fail"))


_NO_ANSWER = fail(
    "it left no answer",
    "an answer within preflight.timeout_s of config.yaml",
    "read the preflight's log, and see whether the node works: scontrol show node",
)


def _network(fact: NodeFacts, several: bool) -> Iterator[Said]:
    """Yield what keeps a node from meeting the others."""
    yield from _interface(fact, several)
    yield from _port(fact)


def _of_node(spec: RunSpec, job: ScaleJob, fact: NodeFacts, several: bool) -> Iterator[Said]:
    yield from _host_name(fact, several)
    if spec.device == "cuda":
        yield from gpu_findings(spec, fact)
    yield from _software(spec, fact)
    yield from _cpus(job, fact)
    yield from _directories(spec, fact)
    yield from _limits(spec, fact, several)
    yield from _leftovers(fact)


def _interface(fact: NodeFacts, several: bool) -> Iterator[Said]:
    found, key = fact.interface, "network.interface in cluster.yaml"
    if found is None:
        return
    there = f"the node has {', '.join(found.others)}" if found.others else "the node has no other one"
    correct = f"correct {key}, which may name one for each node; {there}"
    if not found.exists and found.name:
        yield fail(f"there is no interface {found.name}", f"the interface of {key}", correct)
    elif found.address is None:
        yield fail(
            f"interface {found.name} has no IPv4 address" if found.name else found.error or "no interface was found",
            "an interface with an IPv4 address, on the network of the other nodes",
            correct,
        )
    elif found.up is False:
        wanted = "an interface that is up, with its cable connected"
        yield fail(
            f"interface {found.name} ({found.address}) is down", wanted, f"{correct}; or tell the site's support"
        )
    elif several and found.address.startswith(LOOPBACK):
        yield fail(f"interface {found.name} is loopback ({found.address})", "one that other nodes reach", correct)


def _port(fact: NodeFacts) -> Iterator[Said]:
    port = fact.port
    if port is not None and not port.free:
        holder = f"port {port.port} is held by {port.holder}" if port.holder else f"port {port.port}: {port.error}"
        yield fail(
            f"rendezvous {holder}",
            "a port on which the head can listen",
            f"end that process, or start again for another port: ss --listening --tcp --processes sport = {port.port}",
        )


def _host_name(fact: NodeFacts, several: bool) -> Iterator[Said]:
    if not several or fact.host_addresses is None:
        return
    wanted = "the node's address on a network that all nodes share"
    loopback = [each for each in fact.host_addresses if each.startswith(LOOPBACK)]
    if loopback:
        yield fail(
            f"the host name {fact.host} resolves to {loopback[0]}",
            wanted,
            f"have its line in /etc/hosts corrected; until then {leave_out()}",
        )
    elif not fact.host_addresses:
        advice = f"have the node entered in the site's DNS or /etc/hosts; until then {leave_out()}"
        yield warn(f"the host name {fact.host} does not resolve", wanted, advice)


def _software(spec: RunSpec, fact: NodeFacts) -> Iterator[Said]:
    found = fact.software
    wanted = "the training's Python, with torch"
    if found is None:
        yield warn(
            f"torch was not imported within {fact.time_limit_s:g} s",
            wanted,
            "raise preflight.timeout_s in config.yaml, or put software.python of cluster.yaml on a faster file system",
        )
    elif found.error is not None:
        key = found.error.partition(":")[0]
        lines = [line.strip() for line in found.error.splitlines() if line.strip()]
        try_it = f"try it in a shell{f' there: srun --nodelist={A_NODE} --pty bash' if fact.in_slurm else ''}"
        advice = f"correct {key} in cluster.yaml, and {try_it}"
        if NO_TORCH in found.error:
            if TORCH_NOT_INSTALLED not in found.error:
                advice = f"{NAMES_THE_CAUSE}; {try_it}"
            advice += "; for a program without torch, preflight: {enabled: false} in config.yaml"
        yield fail("; ".join(lines), wanted, advice)


def _cpus(job: ScaleJob, fact: NodeFacts) -> Iterator[Said]:
    if fact.cpus is None or len(fact.cpus) >= job.cpus:
        return
    found = f"the job step has {count(len(fact.cpus), 'CPU')}"
    wanted = f"{job.cpus}, the scale's share of node.cpus in cluster.yaml"
    if fact.in_slurm:
        yield fail(found, wanted, "compare node.cpus with CPUTot and ThreadsPerCore of `scontrol show node`")
    else:
        yield warn(found, wanted, "lower node.cpus in cluster.yaml to what this machine has")


def _directories(spec: RunSpec, fact: NodeFacts) -> Iterator[Said]:
    memory, disk = fact.shared_memory, fact.run_directory
    if memory:
        mount = "it is a mount option of the node, or of the container (software.container.args): --shm-size, size="
        free = memory.free_bytes
        if spec.device == "cuda" and memory.error is None and free is not None and free < LEAST_SHARED_MEMORY:
            wanted = f"{LEAST_SHARED_MEMORY // MIB} MB for NCCL's shared memory"
            yield fail(f"{memory.path} has {free // MIB} MB free", wanted, mount)
        else:
            yield from _room(memory, mount, LITTLE_SHARED_MEMORY if spec.device == "cuda" else LEAST_SHARED_MEMORY)
    if disk:
        advice = f"free some space or inodes: df -h {disk.path}; df -i {disk.path}; see your quota there"
        yield from _room(disk, advice, LITTLE_DISK)
    if fact.marker_seen is False:
        yield fail(
            f"it does not see the job's file in {disk.path if disk else 'the results directory'}",
            "a results directory that all nodes share",
            "set results in config.yaml to a directory on the shared file system",
        )


def _room(found: DirectoryFacts, advice: str, least: int) -> Iterator[Said]:
    if found.error is not None:
        yield fail(f"{found.path} cannot be written: {found.error}", "a directory that this job may write", advice)
        return
    if found.free_bytes is not None and found.free_bytes < least:
        yield warn(f"{found.path} has {found.free_bytes // MIB} MB free", f"{least // MIB} MB", advice)
    if found.free_inodes is not None and found.free_inodes < FEW_INODES:
        yield warn(f"{found.path} has {count(found.free_inodes, 'inode')} free", str(FEW_INODES), advice)


def _limits(spec: RunSpec, fact: NodeFacts, several: bool) -> Iterator[Said]:
    if fact.open_files is not None and fact.open_files < FEW_OPEN_FILES:
        advice = "ask the site's support to raise it (LimitNOFILE of slurmd); until then use fewer loader workers"
        yield warn(
            f"the hard limit of open files (ulimit -Hn) is {fact.open_files}", f"{FEW_OPEN_FILES} or more", advice
        )
    locked = fact.locked_memory_bytes
    if several and spec.device == "cuda" and locked is not None and locked < MUCH_LOCKED_MEMORY:
        yield warn(
            f"ulimit -l is {locked // 1024} KB of locked memory",
            "unlimited, which RDMA needs",
            "ask the site's support for LimitMEMLOCK=infinity of slurmd; over TCP it does not matter",
        )


def _leftovers(fact: NodeFacts) -> Iterator[Said]:
    left = fact.leftovers
    if left:
        named = "; ".join(f"{each.pid} ({each.run or each.command})" for each in left[:SHOWN])
        more = f"; and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        yield warn(
            f"{count(len(left), 'leftover')} of an earlier run: {named}{more}",
            "a node without leftovers, which use its cores, GPUs and memory",
            f"end them there: kill {' '.join(str(each.pid) for each in left)}",
        )
    for question in fact.unanswered:
        if not question.startswith(("software:", "gpus:")):  # reported with what they are about
            limit = f"an answer within {fact.time_limit_s:g} s"
            advice = "look at the node: a file system or a name server may hang"
            yield (fail if "directory" in question else warn)(f"could not examine {question}", limit, advice)


def _compared(spec: RunSpec, facts: Mapping[str, NodeFacts]) -> Iterator[PreflightFinding]:
    """Compare the nodes with each other."""
    yield from model_findings(spec, facts)
    software = {name: fact.software for name, fact in facts.items() if fact.software and not fact.software.error}
    same = "the same on all nodes"
    advice = (
        "let all nodes use one installation: software.python, software.modules and software.setup in cluster.yaml, "
        "or software.container"
    )
    for what, one in (("torch", "torch"), ("CUDA of torch", "cuda"), ("NCCL", "nccl"), ("Python", "python")):
        other = [*unlike({name: getattr(found, one) for name, found in software.items()})]
        for name, own, usual in other:
            said = (warn if one == "python" else fail)(f"{what} {own}, on the others {usual}", same, advice)
            yield said.on(name)
        if other:
            break  # the other versions differ with it
    mtu = {name: fact.interface.mtu for name, fact in facts.items() if fact.interface and fact.interface.mtu}
    for name, own, usual in unlike(mtu):
        found = facts[name].interface
        shown = f"MTU of {found.name if found else 'its interface'} is {own}, on the others {usual}"
        advice = (
            "ask the site's support for one MTU, or name in network.interface of cluster.yaml interfaces of one network"
        )
        yield warn(shown, same, advice).on(name)
