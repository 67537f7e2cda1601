"""What the ranks of the probe found: their files, the figures of the all-reduces, and the findings. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import numpy as np
from ddp_ladder_instrument import slow_settings
from pydantic import Field

from ddp_ladder.common.formats import count, in_short, rank_numbers, significant
from ddp_ladder.common.grouping import grouped
from ddp_ladder.common.messages import Finding, leave_out
from ddp_ladder.common.model import Count, Duration, Model, Name, Positive, Several
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.preflight.result import PairRow, SizeRow, error, warning
from ddp_ladder.records.raw_models import RankDevice, RawFile
from ddp_ladder.settings.terms import Transport, interface_on

MOST_OFF = 0.05  # of the fitted time for the largest size: other load makes the times of sizes uneven
SLOW = 0.5  # a pair of nodes below this fraction of the fastest pair's bandwidth is slow


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
    return tuple(_pair_row((names[a], names[b]), several) for (a, b), several in sorted(measured.items()))


def _pair_row(nodes: tuple[str, str], measured: Sequence[ProbePair]) -> PairRow:
    times_s = [pair.time_s for pair in measured if pair.time_s is not None and not pair.alone]
    alone_s = [pair.time_s for pair in measured if pair.time_s is not None and pair.alone]
    size = measured[0].bytes
    return PairRow(
        nodes=nodes,
        bytes=size,
        time_s=max(times_s, default=None),
        busbw_gb_per_s=_busbw(size, max(times_s), len(times_s)) if times_s else None,
        alone_busbw_gb_per_s=_busbw(size, max(alone_s), len(alone_s)) if alone_s else None,
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
    tested = _by_rate(pairs)
    fastest = max((_rate(pair) for pair in tested), default=0.0)
    beside = max((pair.busbw_gb_per_s or 0.0 for pair in tested), default=0.0)
    return tuple(
        pair for pair in tested if _rate(pair) < SLOW * (beside if pair.alone_busbw_gb_per_s is None else fastest)
    )


def _rate(pair: PairRow) -> float:
    """Return the bandwidth of a tested pair, alone if it was measured alone."""
    alone, beside = pair.alone_busbw_gb_per_s, pair.busbw_gb_per_s
    return (beside or 0.0) if alone is None else alone


def _by_rate(pairs: Iterable[PairRow]) -> list[PairRow]:
    """Return the pairs that were tested, the slowest first."""
    return sorted((pair for pair in pairs if pair.is_tested), key=_rate)


def slow_node(pairs: Sequence[PairRow]) -> str | None:
    """Return the node all of whose pairs are far below every pair of other nodes; None if there is no such node.

    The pairs of other nodes may be uneven, as on a busy network. Of one slow pair either node may be the slow one: a
    node is named only if both its pairs were tested.
    """
    tested = _by_rate(pairs)
    for node in sorted(tested[0].nodes) if tested else ():  # the slowest pair is one of a slow node
        if all(pair.is_tested for pair in pairs if node in pair.nodes):
            own = [_rate(pair) for pair in tested if node in pair.nodes]
            others = [_rate(pair) for pair in tested if node not in pair.nodes]
            if others and max(own) < SLOW * min(others):
                return node
    return None


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
    for (host, device), several in users.items():
        if len(several) > 1:
            what = f"{rank_numbers(several)} share one device of {host}: {device}"
            advice = "compare node.gpus and node.gres in cluster.yaml with the node's GPUs"
            yield error(what, "a device of its own for each rank", advice, nodes[several[0] // spec.gpus_per_node])


def _versions(spec: RunSpec, ranks: Ranks, nodes: Sequence[str]) -> Iterator[Finding]:
    for name in ("torch", "cuda", "nccl"):
        versions = {k: rank.versions.get(name) for k, rank in sorted(ranks.items()) if rank.versions}
        usual = Counter(versions.values()).most_common(1)
        other = next((k for k, version in versions.items() if version != usual[0][0]), None)
        if other is not None:
            what = f"{name} {versions[other]} on rank {other}, and {usual[0][0]} on others"
            advice = "correct software.python, software.modules or software.container in cluster.yaml"
            yield error(what, "one version on all nodes", advice, nodes[other // spec.gpus_per_node])


def value_findings(spec: RunSpec, ranks: Ranks, nodes: Sequence[str]) -> Iterator[Finding]:
    """Yield one finding if an all-reduce returned a wrong value anywhere."""
    wrong = [(k, size) for k, rank in sorted(ranks.items()) for size in rank.sizes if size.wrong]
    if not wrong:
        return
    k, size = min(wrong, key=lambda result: (result[1].bytes, result[0]))
    several = len({rank for rank, _ in wrong})
    where = f"rank {k}" if several == 1 else f"{several} of {len(ranks)} ranks, first rank {k}"
    what = f"an all-reduce of {size.bytes} bytes returned wrong values on {where}: {size.wrong[0]}"
    advice = (
        "train nothing before this is solved: look at network.env in cluster.yaml, and at what wraps torch.distributed "
        "in software.setup; a variant with network.backend gloo shows whether it is NCCL"
    )
    yield error(what, "the exact sum, in every element", advice, nodes[k // spec.gpus_per_node])


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
    yield (error if is_known else warning)(what, f"network.transport: {wanted}", advice)


def bandwidth_findings(
    spec: RunSpec, least: float | None, sizes: Sequence[SizeRow], pairs: Sequence[PairRow]
) -> Iterator[Finding]:
    """Yield a finding if the bandwidth is below the minimum, or a node's pairs are far below the others."""
    best = max((row.busbw_gb_per_s for row in sizes), default=None)
    low = least is not None and best is not None and spec.nodes > 1 and best < least
    node, slow = slow_node(pairs), slow_pairs(pairs)
    if not (low or slow):
        return
    tested = _by_rate(pairs)
    fastest = significant(_rate(tested[-1]) if tested else 0.0)
    what = "" if best is None else f"the bus bandwidth of an all-reduce is at most {significant(best)} GB/s"
    advice = "compare network.interface and network.transport in cluster.yaml with the fastest network of the site"
    if node is not None:
        own = in_short([significant(_rate(pair)) for pair in tested if node in pair.nodes])
        what += f"; {node} is slow: its pairs with other nodes reach {own} GB/s, the fastest pair {fastest} GB/s"
        advice = f"{leave_out(node)}, and report its link ({interface_on(spec.interface, node)}) to your site"
    elif slow:
        named = in_short([f"{' and '.join(pair.nodes)} {significant(_rate(pair))} GB/s" for pair in slow])
        what += f"; slow pairs of nodes: {named}; the fastest pair reaches {fastest} GB/s"
    asked = "about the same for all pairs"
    if low and least is not None:
        asked = f"at least {significant(least)} GB/s (preflight.min_busbw_gb_per_s)"
        advice += "; or lower preflight.min_busbw_gb_per_s in config.yaml if this is good enough for you"
    yield (error if low else warning)(what, asked, advice, node or "")


def untested_pairs(pairs: Sequence[PairRow]) -> Iterator[Finding]:
    """Yield a finding if there was no time for some pairs of neighbouring nodes."""
    left = [" and ".join(pair.nodes) for pair in pairs if not pair.is_tested]
    if left:
        what = f"{len(left)} of {count(len(pairs), 'pair')} of neighbouring nodes not tested: {in_short(left)}"
        advice = "raise preflight.timeout_s in config.yaml: a quarter of it is for the pairs"
        yield warning(what, "all of them tested", advice)
