"""What the ranks of the probe found, as findings: the causes before their consequences. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ddp_ladder.common.formats import count, significant
from ddp_ladder.common.messages import leave_out
from ddp_ladder.plan.plan import PreflightWanted, RunSpec
from ddp_ladder.preflight.bandwidth import slow_node, slow_pairs
from ddp_ladder.preflight.finding import PreflightFinding
from ddp_ladder.preflight.raw_models import ProbeRank
from ddp_ladder.preflight.result import PairRow, SizeRow
from ddp_ladder.preflight.transport import networks_used
from ddp_ladder.settings.terms import interface_on

Ranks = Mapping[int, ProbeRank]
SOFTWARE = "software.python, software.modules or software.container in cluster.yaml"


def identity(spec: RunSpec, ranks: Ranks, nodes: Sequence[str]) -> Iterator[PreflightFinding]:
    """Yield worlds that were merged, ranks in other places than planned, shared devices and differing versions.

    nodes: their names in findings, by node rank.
    """
    for k, rank in sorted(ranks.items()):
        node = nodes[k // spec.gpus_per_node]
        if rank.seen and rank.seen.foreign:
            what = f"rank {k} met ranks of another job: {'; '.join(rank.seen.foreign)}"
            yield _fail(node, what, "only this job's ranks", "start snakemake again, which takes another port")
            return
        if rank.world_size != spec.world_size or (rank.seen and rank.seen.misplaced):
            what = f"rank {k} is in a world of {rank.world_size} ranks"
            yield _fail(node, what, f"{spec.world_size} ranks in the plan's order", _no_variables())
            return
    yield from _order(spec, ranks, nodes)
    yield from _devices(spec, ranks, nodes)
    yield from _versions(spec, ranks, nodes)


def _order(spec: RunSpec, ranks: Ranks, nodes: Sequence[str]) -> Iterator[PreflightFinding]:
    for k, rank in sorted(ranks.items()):
        node_rank, local_rank = divmod(k, spec.gpus_per_node)
        if (rank.node_rank, rank.local_rank) != (node_rank, local_rank) or rank.node not in nodes[node_rank]:
            what = f"rank {k} is process {rank.local_rank} of {rank.node}"
            wanted = f"process {local_rank} of {nodes[node_rank]}: ranks in the order of the nodes"
            yield _fail(rank.node, what, wanted, _no_variables())
            return


def _no_variables() -> str:
    return "remove variables of the launcher (RANK, GROUP_RANK, SLURM_...) from software.setup in cluster.yaml"


def _devices(spec: RunSpec, ranks: Ranks, nodes: Sequence[str]) -> Iterator[PreflightFinding]:
    users: dict[tuple[str, str], list[int]] = {}
    for k, rank in sorted(ranks.items()):
        if rank.device is None:
            continue
        users.setdefault((rank.host, rank.device.id), []).append(k)
        if rank.multiplies is False:
            what = f"rank {k}: a matrix product on {rank.device.name or rank.device.kind} is wrong"
            advice = f"{leave_out()} and report it to your site"
            yield _fail(nodes[k // spec.gpus_per_node], what, "the exact product of whole numbers", advice)
        if rank.cpus < spec.threads_per_rank:
            what = f"rank {k} has {count(rank.cpus, 'CPU')}"
            wanted = f"{spec.threads_per_rank} (node.cpus / node.gpus)"
            advice = "raise node.cpus in cluster.yaml to what the node has, or ask for whole cores with slurm.extra"
            yield _warn(nodes[k // spec.gpus_per_node], what, wanted, advice)
    for (host, device), several in users.items():
        if len(several) > 1:
            what = f"ranks {', '.join(map(str, several))} share one device of {host}: {device}"
            advice = "compare node.gpus and node.gres in cluster.yaml with the node's GPUs"
            yield _fail(nodes[several[0] // spec.gpus_per_node], what, "a device of its own for each rank", advice)


def _versions(spec: RunSpec, ranks: Ranks, nodes: Sequence[str]) -> Iterator[PreflightFinding]:
    for name in ("torch", "cuda", "nccl"):
        found = {k: rank.versions.get(name) for k, rank in sorted(ranks.items()) if rank.versions}
        usual = Counter(found.values()).most_common(1)
        other = next((k for k, version in found.items() if version != usual[0][0]), None)
        if other is not None:
            what = f"{name} is {found[other]} on rank {other}, and {usual[0][0]} on others"
            yield _fail(nodes[other // spec.gpus_per_node], what, "one version on all nodes", f"correct {SOFTWARE}")


def values(spec: RunSpec, ranks: Ranks, nodes: Sequence[str]) -> Iterator[PreflightFinding]:
    """Yield one finding if an all-reduce returned a wrong value anywhere."""
    wrong = [(k, size) for k, rank in sorted(ranks.items()) for size in rank.sizes if size.wrong]
    if not wrong:
        return
    k, size = min(wrong, key=lambda each: (each[1].bytes, each[0]))
    several = sorted({each for each, _ in wrong})
    where = f"rank {k}" if len(several) == 1 else f"{len(several)} of {len(ranks)} ranks, first rank {k}"
    what = f"an all-reduce of {size.bytes} bytes returned wrong values on {where}: {size.wrong[0]}"
    advice = (
        "train nothing before this is solved: look at network.env in cluster.yaml (what your site's documentation asks "
        "for), then at what wraps torch.distributed in software.setup; variants with network.backend gloo show whether "
        "it is NCCL"
    )
    yield _fail(nodes[k // spec.gpus_per_node], what, "the exact sum, in every element", advice)


def transport(spec: RunSpec, wanted: PreflightWanted, found: Sequence[str]) -> Iterator[PreflightFinding]:
    """Yield a finding if NCCL uses another network between nodes than the site promises."""
    if spec.backend != "nccl" or spec.nodes < 2 or wanted.transport == "any":
        return
    used = networks_used(found)
    others = [name for name, kind in used.items() if kind != wanted.transport]
    if not used:
        what = "NCCL's log names no network between the nodes"
        yield _warn(None, what, f"network.transport: {wanted.transport}", "read results/preflight/*/nccl/*.log")
    elif None in used.values():
        what = f"NCCL uses a plugin that is not known here: {', '.join(used)}"
        advice = "see whether it is the site's fast network, and set network.transport: any"
        yield _warn(None, what, f"network.transport: {wanted.transport}", advice)
    elif others:
        what = f"NCCL uses {' and '.join(others)} between nodes"
        advice = f"{_for_transport(wanted.transport)}; or set network.transport in cluster.yaml if this is intended"
        yield _fail(None, what, f"network.transport: {wanted.transport}", advice)


def _for_transport(name: str) -> str:
    if name == "ofi":
        return "load the site's NCCL plugin for libfabric (software.modules), in a container bind it"
    if name == "ib":
        return "read in results/preflight/*/nccl/*.log why NCCL found no InfiniBand (container, NCCL_IB_HCA)"
    return "set NCCL_NET: Socket in network.env"


def bandwidth(
    spec: RunSpec, wanted: PreflightWanted, sizes: Sequence[SizeRow], pairs: Sequence[PairRow]
) -> Iterator[PreflightFinding]:
    """Yield a finding if the bandwidth is below the minimum, or a node's pairs are far below the others."""
    best = max((row.busbw_gb_per_s for row in sizes), default=None)
    least = wanted.min_busbw_gb_per_s
    low = least is not None and best is not None and spec.nodes > 1 and best < least
    node, slow = slow_node(pairs), slow_pairs(pairs)
    if not (low or slow):
        return
    fastest = significant(max((pair.busbw_gb_per_s for pair in pairs), default=0.0))
    what = "" if best is None else f"the bus bandwidth of an all-reduce is at most {significant(best)} GB/s"
    if node is not None:
        own = ", ".join(significant(pair.busbw_gb_per_s) for pair in pairs if node in pair.nodes)
        what += f"; {node} is slow: its pairs with other nodes reach {own} GB/s, the fastest pair {fastest} GB/s"
    elif slow:
        named = ", ".join(f"{' and '.join(pair.nodes)} {significant(pair.busbw_gb_per_s)} GB/s" for pair in slow)
        what += f"; slow pairs of nodes: {named}; the fastest pair reaches {fastest} GB/s"
    key = "preflight.min_busbw_gb_per_s"
    asked = f"at least {significant(least)} GB/s ({key})" if low else "about the same for all pairs"
    interface = interface_on(spec.interface, node) if node is not None else "network.interface"
    if node is not None:
        advice = f"{leave_out(node)}, and report its link ({interface}) to your site"
    else:
        advice = "compare network.interface and network.transport in cluster.yaml with the fastest network of the site"
    if low:
        advice += f"; or lower {key} in config.yaml if this is good enough for you"
    yield (_fail if low else _warn)(node, what, asked, advice)


def _fail(node: str | None, what: str, wanted: str, advice: str) -> PreflightFinding:
    return PreflightFinding(level="fail", node=node, what=what, wanted=wanted, next=advice)


def _warn(node: str | None, what: str, wanted: str, advice: str) -> PreflightFinding:
    return PreflightFinding(level="warn", node=node, what=what, wanted=wanted, next=advice)
