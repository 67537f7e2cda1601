"""Findings on the hosts: their CPUs, threads, memory, network, and the cores of the ranks. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ddp_ladder.common.formats import count, duration
from ddp_ladder.machine.binding import WHAT_BINDS, BoundRank, binding_mistakes
from ddp_ladder.node.numa import cpus_text
from ddp_ladder.plan.asked import Asked
from ddp_ladder.usage.models import Memory, NodeUsage, Rate, UsageFinding
from ddp_ladder.usage.run_use import RunUse, listed, nodes_in_words, one, share, shares

FULL_CPUS = 0.95  # of the CPUs that the run may use, on average
BUSY_CPUS = 0.9  # threads beyond the cores cost time only where the cores are busy
MUCH_OF_OTHERS = 0.2  # of the CPUs, by processes that are not the training's: then its threads do not fill them
MUCH_WAIT = 0.1  # of the step time for data
MORE_THREADS = 1.2  # times the cores: a few more, such as those of idle workers, do no harm
FULL_LINK = 0.8  # of the link's rate, on average: headers and pauses between steps leave no more
MB_OF_SLURM = 2**20  # bytes
LONGEST_FORECAST_S = 365 * 86400.0  # no node runs that long


def host_findings(run: RunUse) -> Iterator[UsageFinding]:
    """Yield what is wrong with the hosts of a run. Agents on one machine share its CPUs, which says nothing."""
    if not run.simulated:
        yield from _cpus_full(run)
        yield from _threads(run)
        yield from _binding(run)
    yield from _memory(run)
    yield from _network(run)
    yield from _numa(run)


def other_processes(run: RunUse) -> Iterator[UsageFinding]:
    """Yield the nodes whose CPUs other processes used, where the training lacked them.

    A training on GPUs lacks them if its ranks waited for data, or its threads for a core.
    """
    wait = run.data_wait_fraction or 0.0
    found = [
        node
        for node in run.nodes
        if _is_shared(node, run)
        and (
            _is_crowded(node, run)
            or ((node.cpu_fraction or 0.0) >= FULL_CPUS and (not run.on_gpus or wait >= MUCH_WAIT))
        )
    ]
    if not found:
        return
    worst = max(found, key=lambda node: _cores_of_others(node, run))
    trained = _cores_of_training(worst, run)
    waited = f"; the ranks waited for data {share(wait)} of the step time" if wait >= MUCH_WAIT else ""
    on = "" if len({node.node for node in found}) == 1 else f" on {worst.node}"
    alone = (
        "ask for whole nodes (slurm.extra: [--exclusive] in cluster.yaml)"
        if run.asked is None or run.asked.slurm
        else "end the other processes of this machine"
    )
    yield UsageFinding(
        kind="other processes",
        what=f"{listed([node.node for node in found]) if run.simulated else nodes_in_words(found, run)}: other "
        f"processes than the training used {_cores_of_others(worst, run):.1f} of the {worst.cpus} CPUs of the run{on}, "
        f"the training {trained:.2g}{waited}",
        node=one([node.node for node in found]),
        gpu=None,
        everywhere=len(found) == len(run.nodes),
        next=f"{alone}, and delete the directories of these runs below results/runs, so that the next start measures "
        "them again",
    )


def _is_shared(node: NodeUsage, run: RunUse) -> bool:
    """Return True if much of a node's CPUs was used by other processes than the training."""
    return _cores_of_others(node, run) > MUCH_OF_OTHERS * node.cpus


def _cores_of_training(node: NodeUsage, run: RunUse) -> float:
    """Return the cores that the training used on a node's machine: on one that is several nodes, all agents'."""
    return sum(each.training_cpu_cores or 0.0 for each in (run.nodes if run.simulated else (node,)))


def _cores_of_others(node: NodeUsage, run: RunUse) -> float:
    """Return how many of the run's CPUs were busy with other processes than the training's; 0 if it is not known."""
    if node.cpu_fraction is None or node.training_cpu_cores is None:
        return 0.0
    return max(0.0, node.cpu_fraction * node.cpus - _cores_of_training(node, run))


def _cpus_full(run: RunUse) -> Iterator[UsageFinding]:
    workers = max((rank.workers or 0 for rank in run.ranks), default=0)
    wait = run.data_wait_fraction or 0.0
    full = [node for node in run.nodes if (node.cpu_fraction or 0.0) >= FULL_CPUS and not _is_shared(node, run)]
    if not workers or wait < MUCH_WAIT or not full:
        return
    cpus = shares([node.cpu_fraction or 0.0 for node in full])
    more = "" if run.asked and not run.asked.slurm else "raise node.cpus in cluster.yaml, or "
    yield UsageFinding(
        kind="CPUs full",
        what=f"{nodes_in_words(full, run)}: the {full[0].cpus} CPUs of the run were {cpus} busy, with {workers} loader "
        f"workers per rank, and the ranks still waited for data {share(wait)} of the step time",
        node=one([node.node for node in full]),
        gpu=None,
        next=f"{more}make a sample cheaper to load: smaller files, decoding and augmentation on the GPU",
        everywhere=len(full) == len(run.nodes),
    )


def _threads(run: RunUse) -> Iterator[UsageFinding]:
    crowded = [node for node in run.nodes if _is_crowded(node, run) and not _is_shared(node, run)]
    if not crowded:
        return
    first = crowded[0]
    ranks, workers = run.ranks_of(first), _workers(run, first)
    parts = count(len(ranks), "rank") if run.on_gpus else f"{len(ranks)} x {ranks[0].threads} threads of torch"
    parts += f" and {workers} loader workers" if workers else ""
    asked = run.asked if run.asked and first.cpus < run.asked.cpus else None
    lacking = f" (asked for: {asked.cpus})" if asked else ""
    explained = asked is not None and _runnable(run, first) <= MORE_THREADS * asked.cpus
    yield UsageFinding(
        kind="too many threads",
        what=f"{nodes_in_words(crowded, run)}: {_runnable(run, first)} threads that compute ({parts}) on "
        f"{first.cpus} CPUs{lacking}, which were {shares([node.cpu_fraction or 0.0 for node in crowded])} busy",
        node=one([node.node for node in crowded]),
        gpu=None,
        next=_lacking_cpus(asked, first) if asked and explained else "; or ".join(_fewer_threads(run, first)),
        everywhere=len(crowded) == len(run.nodes),
    )


def _lacking_cpus(asked: Asked, node: NodeUsage) -> str:
    """Return what to do where the run may use fewer CPUs than the settings say, by which threads are started."""
    if asked.slurm:
        return (
            f"find out why the run may use {node.cpus} of the {asked.cpus} CPUs per node that its job asked for: "
            f"slurm.extra in cluster.yaml, {WHAT_BINDS}"
        )
    return f"lower node.cpus in cluster.yaml to the {node.cpus} that can be used here, and node.gpus if it is larger"


def _fewer_threads(run: RunUse, node: NodeUsage) -> Iterator[str]:
    """Yield ways to as many threads as CPUs. With node.cpus, torch's threads grow as well, which matters on CPUs."""
    ranks, workers = run.ranks_of(node), _workers(run, node)
    threads = ranks[0].threads or 1
    if not run.on_gpus and (threads > run.threads_per_rank or not workers):
        usual = f"threads per rank: {run.threads_per_rank}"
        yield f"leave OMP_NUM_THREADS and torch.set_num_threads to the ladder ({usual})"
    if not workers:
        return
    yield "give the script fewer loader workers (workload.args)"
    fitting = (node.cpus - workers) // len(ranks)
    if not run.on_gpus and 1 <= fitting < min(threads, run.threads_per_rank):
        yield f"set OMP_NUM_THREADS: {fitting} in workload.env of config.yaml"
    if run.on_gpus and run.asked and run.asked.slurm and run.asked.node_gpus:
        wanted = math.ceil(_runnable(run, node) * run.asked.node_gpus / run.gpus_per_node)
        yield f"raise node.cpus in cluster.yaml to {wanted}, if the nodes have as many"


def _is_crowded(node: NodeUsage, run: RunUse) -> bool:
    return _runnable(run, node) > MORE_THREADS * node.cpus and (node.cpu_fraction or 0.0) >= BUSY_CPUS


def _runnable(run: RunUse, node: NodeUsage) -> int:
    """Return the threads that may want a core at once. On GPUs, those of torch's CPU operations mostly sleep."""
    return sum(1 if run.on_gpus else rank.threads or 1 for rank in run.ranks_of(node)) + _workers(run, node)


def _workers(run: RunUse, node: NodeUsage) -> int:
    return sum(rank.workers or 0 for rank in run.ranks_of(node))


def _memory(run: RunUse) -> Iterator[UsageFinding]:
    growing = [node for node in run.nodes if _growth(node)]
    if not growing:
        return
    fastest = max(growing, key=_growth)
    memory = fastest.training_memory
    assert memory is not None
    left_s, whose = _until_full(fastest, memory, run.asked)
    full = f"; {whose} is full in {duration(left_s)}" if 0 < left_s < LONGEST_FORECAST_S else ""
    one_epoch = "; a cache of the data that fills in the first epoch looks the same" if run.epochs == 1 else ""
    at_most = "" if len(growing) == 1 else f" at most (on {fastest.node})"
    yield UsageFinding(
        kind="memory grows",
        what=f"{nodes_in_words(growing, run)}: the memory of the training's processes grows steadily, by "
        f"{60 * _growth(fastest) / 1e6:,.0f} MB/min{at_most}, from {memory.first_bytes / 1e9:.2f} to "
        f"{memory.last_bytes / 1e9:.2f} GB{full}{one_epoch}",
        node=one([node.node for node in growing]),
        gpu=None,
        next="look for what the script keeps of each step (a loss with its graph: use loss.item()), or each batch; "
        "until then node.memory_mb in cluster.yaml limits how long it can run",
        everywhere=len(growing) == len(run.nodes),
    )


def _until_full(node: NodeUsage, memory: Memory, asked: Asked | None) -> tuple[float, str]:
    """Return the seconds until no memory is left, and whose it is: the node's, or what Slurm gives the job of it."""
    ends = [(node.node_memory_bytes - (node.node_memory_used_bytes or 0), "the node's memory")]
    if asked and asked.slurm and asked.memory_mb:
        limit = asked.memory_mb * MB_OF_SLURM
        ends.append((limit - memory.last_bytes, f"the job's memory of {limit / 1e9:.1f} GB (by node.memory_mb)"))
    left_bytes, whose = min(ends)
    return left_bytes / _growth(node), whose


def _growth(node: NodeUsage) -> float:
    return (node.training_memory.growth_bytes_per_s or 0.0) if node.training_memory else 0.0


def _network(run: RunUse) -> Iterator[UsageFinding]:
    for fabric in (False, True):
        found = [(node, *rates) for node in run.nodes if (rates := _link_rate(node, fabric))]
        full = [(node, used, link) for node, used, link in found if used >= FULL_LINK * link]
        if not full:
            continue
        nodes = [node for node, _, _ in full]
        node, used, link = full[0]
        name = "the InfiniBand or Slingshot ports" if fabric else node.interface
        yield UsageFinding(
            kind="network full",
            what=f"{nodes_in_words(nodes, run)}: {name} carried {8 * used / 1e9:.3g} of {8 * link / 1e9:.3g} Gbit/s on "
            f"average ({shares([used / link for _, used, link in full])} of the link's rate)",
            node=one([node.node for node in nodes]),
            gpu=None,
            next="raise workload.batch_per_gpu, so that gradients are exchanged less often; let the script compress "
            "them (torch's bf16_compress_hook); or set network.interface to a faster one",
            everywhere=len(nodes) == len(run.nodes),
        )


def _link_rate(node: NodeUsage, fabric: bool) -> tuple[float, float] | None:
    """Return the mean of the busier direction and the link's rate, bytes per second; None if one is not known."""
    both: Sequence[Rate | None] = (
        (node.fabric_received_bytes_per_s, node.fabric_sent_bytes_per_s)
        if fabric
        else (node.network_received_bytes_per_s, node.network_sent_bytes_per_s)
    )
    link = node.fabric_bytes_per_s if fabric else node.interface_bytes_per_s
    known = [rate.mean for rate in both if rate is not None]
    return (max(known), link) if known and link else None


def _numa(run: RunUse) -> Iterator[UsageFinding]:
    far: list[tuple[NodeUsage, int, str]] = []
    for node, gpu in run.gpus:
        about = run.about[node.node_rank].gpus[gpu.index]
        rank = next(rank for rank in run.ranks if rank.rank == gpu.rank)
        if rank.cpus and about.numa_cpus and not rank.cpus & {*about.numa_cpus}:
            where = f"NUMA node {about.numa_node}" if about.numa_node is not None else "the NUMA node"
            text = f"rank {rank.rank} on {node.node} (CPUs {cpus_text(rank.cpus)}; GPU {gpu.index} is at {where}, "
            far.append((node, gpu.index, f"{text}CPUs {cpus_text(about.numa_cpus)})"))
    if far:
        yield UsageFinding(
            kind="NUMA",
            what=f"bound to cores of another NUMA node than the GPU: {listed([text for _, _, text in far])}",
            node=one([node.node for node, _, _ in far]),
            gpu=far[0][1] if len(far) == 1 else None,
            next="let Slurm choose cores beside the GPUs (slurm.extra: [--gres-flags=enforce-binding] in "
            "cluster.yaml), or ask for all cores of the node with node.cpus",
            everywhere=len(far) == len(run.gpus),
        )


def _binding(run: RunUse) -> Iterator[UsageFinding]:
    """Yield mistakes in the CPUs of the ranks; one that several nodes share is one finding."""
    found: dict[tuple[str, str], list[NodeUsage]] = {}
    for node in run.nodes:
        available = frozenset(run.about[node.node_rank].cpus)
        ranks = [BoundRank(rank.rank, rank.cpus, rank.threads) for rank in run.ranks_of(node) if rank.cpus]
        for mistake in binding_mistakes(ranks, available):
            found.setdefault((mistake.what, mistake.next), []).append(node)
    for (what, advice), nodes in found.items():
        where = one([node.node for node in nodes])
        text = f"{nodes_in_words(nodes, run)}: {what}"
        alike = len(nodes) == len(run.nodes)
        yield UsageFinding(kind="CPU binding", what=text, node=where, gpu=None, next=advice, everywhere=alike)
