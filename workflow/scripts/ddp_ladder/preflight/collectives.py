"""What the ranks of the probe found: their files, the figures of the all-reduces, and the findings. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import numpy as np
from ddp_ladder_instrument import slow_settings
from pydantic import Field

from ddp_ladder.common.findings import Finding
from ddp_ladder.common.formats import count, grouped, hostlist, in_short, rank_numbers, short_list, significant
from ddp_ladder.common.messages import leave_out
from ddp_ladder.common.model import Count, Duration, Model, Name, Positive, Several
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.preflight.result import Link, PairRow, SizeRow, error, locate, warning
from ddp_ladder.records.raw_models import RankDevice, RawFile
from ddp_ladder.settings.terms import Transport, interface_on

MOST_OFF = 0.05  # of the fitted time for the largest size: other load makes the times of sizes uneven
SLOW = 0.5  # a pair of nodes below this fraction of the fastest pair's bandwidth is slow
NAMED = 2  # of alike things that are wrong on several nodes
SAME = ("torch", "cuda", "nccl")
COMPARE = "compare network.interface and network.transport in cluster.yaml with the fastest network of the site"


# Files of the ranks: ranks/rank<k>.json


class ProbeSize(Model):
    """All-reduces of one size as one rank timed them."""

    bytes: Positive
    time_s: Duration  # of one
    wrong: Several[str]  # results that were wrong, in words


class ProbePair(Model):
    """All-reduces over two nodes, by node rank, as one of their ranks timed them."""

    nodes: Annotated[tuple[Count, Count], Field(strict=False)]
    bytes: Positive
    time_s: Duration | None  # None: no time was left for them
    alone: bool  # False: beside the other pairs of their round


class ProbeRank(RawFile):
    """The file of one rank of the probe."""

    rank: Count
    local_rank: Count
    node_rank: Count
    world_size: Positive
    node: Name
    host: Name
    pid: Positive
    step: Positive  # how far it came
    doing: Name  # what it does there
    at_s: float
    error: str | None
    frame: str | None = Field(default=None, description="The function that it was in when its time limit ended it.")
    device: RankDevice | None = None
    versions: Mapping[str, str | None] | None = Field(default=None, description="Of torch, cuda and nccl.")
    sizes: Several[ProbeSize] = ()
    pairs: Several[ProbePair] = ()
    matrix_tflop_per_s: Mapping[str, float] = Field(default={}, description="Of large matrices, by precision.")


Ranks = Mapping[int, ProbeRank]


# Figures


def _busbw(size: int, time_s: float, ranks: int) -> float:
    """Return the bus bandwidth in GB/s: what each link carries, 2 (n - 1) / n of the message."""
    return size / time_s / 1e9 * 2 * (ranks - 1) / ranks if time_s else 0.0


def size_rows(ranks: Sequence[ProbeRank]) -> tuple[SizeRow, ...]:
    """Return the sizes that every rank measured."""
    rows = []
    for several in zip(*(rank.sizes for rank in ranks), strict=False):
        size, time_s = several[0].bytes, max(timed.time_s for timed in several)
        rows.append(SizeRow(bytes=size, time_s=time_s, busbw_gb_per_s=_busbw(size, time_s, len(ranks))))
    return tuple(rows)


def pair_rows(ranks: Sequence[ProbeRank], names: Sequence[str]) -> tuple[PairRow, ...]:
    """Return the pairs of nodes, each with the time of its slowest rank."""
    measured = grouped((pair.nodes, pair) for rank in ranks for pair in rank.pairs)
    return tuple(
        _pair_row((names[a], names[b]), several, is_check=b - a not in (1, len(names) - 1))
        for (a, b), several in sorted(measured.items())
    )


def _pair_row(nodes: tuple[str, str], measured: Sequence[ProbePair], is_check: bool) -> PairRow:
    times_s = [pair.time_s for pair in measured if pair.time_s is not None and not pair.alone]
    alone_s = [pair.time_s for pair in measured if pair.time_s is not None and pair.alone]
    size = measured[0].bytes
    return PairRow(
        nodes=nodes,
        bytes=size,
        time_s=max(times_s, default=None),
        busbw_gb_per_s=_busbw(size, max(times_s), len(times_s)) if times_s else None,
        alone_busbw_gb_per_s=_busbw(size, max(alone_s), len(alone_s)) if alone_s else None,
        is_check=is_check,
    )


def fit(rows: Sequence[SizeRow]) -> tuple[float, float] | None:
    """Return (alpha, beta): an all-reduce of n bytes takes alpha + beta * n seconds. None for fewer than two sizes.

    Relative errors are fitted, so that small messages decide alpha and large ones beta. If the times are too uneven for
    a line, or it is MOST_OFF at the largest size, the shortest time is alpha, and the largest size decides beta.
    """
    if len(rows) < 2:
        return None
    sizes, times_s = np.array([(row.bytes, max(row.time_s, 1e-9)) for row in rows]).T
    beta, alpha = np.polyfit(sizes, times_s, 1, w=1 / times_s)
    if min(alpha, beta) <= 0 or abs((alpha + beta * sizes[-1]) / times_s[-1] - 1) > MOST_OFF:
        alpha = times_s.min()
        beta = (times_s[-1] - alpha) / sizes[-1]
    return float(alpha), float(beta)


def matrix_rates(ranks: Sequence[ProbeRank]) -> dict[str, float]:
    """Return the median over ranks of the TFLOP/s in each precision that all of them measured."""
    first = ranks[0].matrix_tflop_per_s if ranks else {}
    common = [name for name in first if all(name in rank.matrix_tflop_per_s for rank in ranks)]
    return {name: float(np.median([rank.matrix_tflop_per_s[name] for rank in ranks])) for name in common}


def slow_pairs(pairs: Iterable[PairRow]) -> tuple[PairRow, ...]:
    """Return the pairs that are far below the fastest one, the slowest first.

    A pair that was not measured alone is compared with what others reached beside others only: a busy switch is no
    fault of its nodes.
    """
    tested = sorted((pair for pair in pairs if pair.is_tested), key=_rate)  # the slowest first
    fastest = max((_rate(pair) for pair in tested), default=0.0)
    beside = max((pair.busbw_gb_per_s or 0.0 for pair in tested), default=0.0)
    return tuple(
        pair for pair in tested if _rate(pair) < SLOW * (beside if pair.alone_busbw_gb_per_s is None else fastest)
    )


def _rate(pair: PairRow) -> float:
    """Return the bandwidth of a tested pair, alone if it was measured alone."""
    alone, beside = pair.alone_busbw_gb_per_s, pair.busbw_gb_per_s
    return (beside or 0.0) if alone is None else alone


# Transports in NCCL's log at INFO

# "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "Channel 02/0 : 1[1] -> 2[0] [receive] via NET/IBext_v8/5/GDRDMA",
# "... [send] via NET/AWS Libfabric/1(2)/GDRDMA/Shared", "... via P2P/direct pointer/read", "... via SHM/direct/direct"
_CHANNEL = re.compile(
    # RCCL adds the communicator to the line: " comm 0x55d2 nRanks 08".
    r"NCCL INFO (?:Channel|Ring|Tree) .*? via (?P<via>(?:P2P|SHM|NET)\b.*?)(?:\s+comm 0x\S+.*)?\s*$",
    re.MULTILINE,
)
_KEPT = {"P2P": 2, "SHM": 1}  # parts of a channel's transport that say what it is

_KINDS: tuple[tuple[re.Pattern[str], Transport], ...] = (
    (re.compile("^IB|UCX|SHARP", re.IGNORECASE), "ib"),  # IB, IBext_v8: NCCL's own, and the plugins of HPC-X
    (re.compile("Libfabric|OFI", re.IGNORECASE), "ofi"),
    (re.compile("Socket", re.IGNORECASE), "socket"),
)


def transports(logs: Iterable[str]) -> tuple[str, ...]:
    """Return what connects the ranks, sorted: ``NET/IB``, ``NET/IB/GDRDMA``, ``NET/Socket``, ``P2P/CUMEM``, ``SHM``.

    A network is in the list only if a channel uses it: NCCL opens one on a single node as well.
    """
    used = set()
    for via in {match["via"] for log in logs for match in _CHANNEL.finditer(log)}:
        kind, *rest = via.split("/")
        if kind == "NET":
            direct = "/GDRDMA" if any(part.startswith("GDRDMA") for part in rest) else ""
            used.add(f"NET/{rest[0] if rest else '?'}{direct}")
        else:
            used.add("/".join([kind, *rest][: _KEPT[kind]]))
    return tuple(sorted(used))


def networks_used(used: Iterable[str]) -> dict[str, Transport | None]:
    """Return the networks between nodes by NCCL's names, as values of network.transport; None for other plugins."""
    names = {transport.split("/")[1] for transport in used if transport.startswith("NET/")}
    return {name: next((kind for form, kind in _KINDS if form.search(name)), None) for name in sorted(names)}


# Findings, the causes before their consequences


def identity_findings(spec: RunSpec, ranks: Ranks, nodes: Sequence[str]) -> Iterator[Finding]:
    """Yield shared devices and differing versions. nodes: their names in findings, by node rank."""
    yield from _devices(spec, ranks, nodes)
    yield from _versions(spec, ranks, nodes)


def _devices(spec: RunSpec, ranks: Ranks, nodes: Sequence[str]) -> Iterator[Finding]:
    users = grouped(((rank.host, rank.device.id), k) for k, rank in sorted(ranks.items()) if rank.device)
    shared = [(device, several) for (_, device), several in users.items() if len(several) > 1]
    if shared:
        names = [nodes[several[0] // spec.gpus_per_node] for _, several in shared]
        alike = [
            f"{rank_numbers(several)} share one device of {name}: {device}"
            for name, (device, several) in zip(names, shared, strict=True)
        ]
        advice = "compare node.gpus and node.gres in cluster.yaml with the node's GPUs"
        wanted = "a device of its own for each rank"
        yield error(in_short(alike, NAMED, "; "), wanted, advice, hostlist(names), "settings")


def _versions(spec: RunSpec, ranks: Ranks, nodes: Sequence[str]) -> Iterator[Finding]:
    """Yield one finding if not all ranks have the same versions: of the nodes that differ from most."""
    known = {k: rank.versions for k, rank in sorted(ranks.items()) if rank.versions}
    usual = {name: Counter(each.get(name) for each in known.values()).most_common(1)[0][0] for name in SAME if known}
    other = {
        k: ", ".join(f"{name} {each.get(name)}" for name in SAME if each.get(name) != usual[name])
        for k, each in known.items()
    }
    odd = grouped((words, nodes[k // spec.gpus_per_node]) for k, words in other.items() if words)
    if odd:
        differing = [name for name in SAME if any(each.get(name) != usual[name] for each in known.values())]
        own = in_short([f"{words} on {short_list(hostlist(names))}" for words, names in odd.items()], NAMED, "; ")
        what = f"{own}, and {', '.join(f'{name} {usual[name]}' for name in differing)} on others"
        advice = "correct software.python, software.modules or software.container in cluster.yaml"
        place = hostlist(name for names in odd.values() for name in names)
        yield error(what, "one version on all nodes", advice, place, "software")


def value_findings(spec: RunSpec, ranks: Ranks, nodes: Sequence[str]) -> Iterator[Finding]:
    """Yield one finding if an all-reduce returned a wrong value anywhere."""
    wrong = [(k, size) for k, rank in sorted(ranks.items()) for size in rank.sizes if size.wrong]
    if not wrong:
        return
    k, size = min(wrong, key=lambda result: (result[1].bytes, result[0]))
    several = [*dict.fromkeys(rank for rank, _ in wrong)]
    where = f"rank {k}" if len(several) == 1 else f"{len(several)} of {len(ranks)} ranks, first rank {k}"
    what = f"an all-reduce of {size.bytes} bytes returned wrong values on {where}: {size.wrong[0]}"
    advice = (
        "train nothing before this is solved: look at network.env in cluster.yaml, and at what wraps torch.distributed "
        "in software.setup; a variant with network.backend gloo shows whether it is NCCL"
    )
    names = [*dict.fromkeys(nodes[rank // spec.gpus_per_node] for rank in several)]
    place = hostlist(names) if len(names) < len(nodes) else ""
    yield error(what, "the exact sum, in every element", advice, place)


DISABLING = ("NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")


def transport_findings(spec: RunSpec, wanted: Transport, used: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding if NCCL uses another network between nodes than the site promises."""
    if spec.backend != "nccl" or spec.nodes < 2 or wanted == "any":
        return
    networks = networks_used(used)
    if {*networks.values()} == {wanted}:
        return
    what = f"NCCL uses {' and '.join(networks) or 'no network that its log names'} between the nodes"
    disabled = [each for each in slow_settings.variables(spec.env) if each.startswith(DISABLING)]
    slow = slow_settings.in_words(disabled, True, wanted)
    what += f", with {slow}" if slow else ""
    advice = f"{slow_settings.REMOVE}; else " if slow else ""
    advice += (
        "read in nccl/*.log of the preflight which networks NCCL found, and load or bind the site's plugin "
        "(software.modules, software.container); or set network.transport in cluster.yaml if this is intended"
    )
    is_known = bool(networks) and None not in networks.values()
    yield (error if is_known else warning)(what, f"network.transport: {wanted}", advice, kind="settings")


def bandwidth_findings(
    spec: RunSpec, least: float | None, sizes: Sequence[SizeRow], pairs: Sequence[PairRow], nodes: Sequence[str]
) -> Iterator[Finding]:
    """Yield which nodes, links or parts of the network are slow; if none is, a bandwidth below the minimum."""
    best = max((row.busbw_gb_per_s for row in sizes), default=None)
    low = least is not None and best is not None and spec.nodes > 1 and best < least
    causes = [*_slow(spec, pairs, nodes)]
    if low and not causes:
        causes = [warning("", "", COMPARE, kind="settings")]
    reached = "" if best is None else f"the bus bandwidth of an all-reduce is at most {significant(best)} GB/s"
    wanted, accept = "about the same for all pairs", ""
    if low and least is not None:
        wanted = f"at least {significant(least)} GB/s (preflight.min_busbw_gb_per_s)"
        accept = "; or lower preflight.min_busbw_gb_per_s in config.yaml if this is good enough for you"
    for found in causes:
        measured = "; ".join(filter(None, (reached, found.measured)))
        severity = "error" if low else "warning"
        yield found.replace(severity=severity, measured=measured, wanted=wanted, next=found.next + accept)


def _slow(spec: RunSpec, pairs: Sequence[PairRow], nodes: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding for the nodes, the links and the parts of the network that are slow."""
    number = {name: k for k, name in enumerate(nodes)}
    by_link = {(min(a, b), max(a, b)): pair for pair in pairs for a, b in [[number[name] for name in pair.nodes]]}
    slow = {pair.nodes for pair in slow_pairs(pairs)}
    found = locate({link: pair.nodes not in slow if pair.is_tested else None for link, pair in by_link.items()})
    fastest = significant(max((_rate(pair) for pair in pairs if pair.nodes not in slow), default=0.0))

    def reach(links: Iterable[Link]) -> str:
        rates = sorted(_rate(by_link[link]) for link in links if by_link[link].nodes in slow)
        return f"{' to '.join(dict.fromkeys(map(significant, (rates[0], rates[-1]))))} GB/s"

    if found.nodes:
        names, own = [nodes[k] for k in found.nodes], {*found.nodes}
        what = f"{short_list(hostlist(names))} {'is' if len(names) == 1 else 'are'} slow: pairs with other nodes reach "
        what += f"{reach(link for link in by_link if not own.isdisjoint(link))}, the fastest pair {fastest} GB/s"
        advice = f"{leave_out(*names)}, and report its link ({interface_on(spec.interface, names[0])}) to your site"
        yield warning(what, "", advice, hostlist(names), "node")
    if found.links:
        names = [nodes[k] for k in sorted({node for link in found.links for node in link})]
        each = in_short([f"{nodes[a]} and {nodes[b]} {reach([(a, b)])}" for a, b in found.links])
        what = f"slow pairs of nodes: {each}; the fastest pair reaches {fastest} GB/s"
        yield warning(
            what, "", f"{leave_out(*names)}, or one node of each pair; else {COMPARE}", hostlist(names), "link"
        )
    if found.groups:
        group = {node: k for k, several in enumerate(found.groups) for node in several}
        across = reach((a, b) for a, b in by_link if a in group and b in group and group[a] != group[b])
        between = tuple(hostlist(nodes[k] for k in several) for several in found.groups)
        what = f"the network between {' and '.join(map(short_list, between))} is slow: "
        what += f"pairs across reach {across}, the fastest pair {fastest} GB/s"
        advice = "report it to your site: a switch, or its links; until then ask for nodes of one group "
        advice += "(slurm.nodelist, slurm.constraint, or slurm.extra: [--switches=1])"
        yield warning(what, "", advice, kind="network").replace(evidence=between)


def untested_pairs(pairs: Sequence[PairRow]) -> Iterator[Finding]:
    """Yield a finding if there was no time for some pairs of neighbouring nodes."""
    ring = [pair for pair in pairs if not pair.is_check]
    left = [" and ".join(pair.nodes) for pair in ring if not pair.is_tested]
    if left:
        what = f"{len(left)} of {count(len(ring), 'pair')} of neighbouring nodes not tested: {in_short(left)}"
        advice = "raise preflight.timeout_s in config.yaml: a quarter of it is for the pairs"
        yield warning(what, "all of them tested", advice, kind="settings")
