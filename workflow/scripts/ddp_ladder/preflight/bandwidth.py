"""Figures of the all-reduces: bandwidths as nccl-tests defines them, latency and bandwidth fitted, slow nodes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ddp_ladder.preflight.raw_models import ProbeRank
from ddp_ladder.preflight.result import PairRow, SizeRow

MOST_OFF = 0.05  # of the fitted time for the largest size: other load makes the times of sizes uneven
SLOW = 0.5  # a pair of nodes below this fraction of the fastest pair's bandwidth is slow


def bus_factor(ranks: int) -> float:
    """Return bus bandwidth / algorithm bandwidth of an all-reduce: what each link carries per byte of the message."""
    return 2 * (ranks - 1) / ranks


def size_rows(ranks: Sequence[ProbeRank]) -> tuple[SizeRow, ...]:
    """Return the sizes that every rank measured."""
    rows = []
    for several in zip(*(rank.sizes for rank in ranks), strict=False):
        first, time_s = several[0], max(one.time_s for one in several)
        algbw = first.bytes / time_s / 1e9 if time_s else 0.0
        rows.append(
            SizeRow(
                bytes=first.bytes,
                iterations=first.iterations,
                time_s=time_s,
                algbw_gb_per_s=algbw,
                busbw_gb_per_s=algbw * bus_factor(len(ranks)),
            )
        )
    return tuple(rows)


def pair_rows(ranks: Sequence[ProbeRank], names: Sequence[str]) -> tuple[PairRow, ...]:
    """Return the pairs of nodes, each with the time of its slowest rank."""
    times: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for rank in ranks:
        for pair in rank.pairs:
            times.setdefault(pair.nodes, []).append((pair.bytes, pair.time_s))
    rows = []
    for (one, other), found in sorted(times.items()):
        size, time_s = found[0][0], max(time_s for _, time_s in found)
        busbw = size / time_s / 1e9 * bus_factor(len(found)) if time_s else 0.0
        rows.append(PairRow(nodes=(names[one], names[other]), bytes=size, time_s=time_s, busbw_gb_per_s=busbw))
    return tuple(rows)


def fit(rows: Sequence[SizeRow]) -> tuple[float, float] | None:
    """Return (alpha, beta): an all-reduce of n bytes takes alpha + beta * n seconds. None for fewer than two sizes.

    Relative errors are fitted, so that small messages decide alpha and large ones beta. If the times are too uneven for
    a line, or it is MOST_OFF at the largest size, the shortest time is alpha, and the largest size decides beta.
    """
    if len(rows) < 2:
        return None
    times_s = [max(row.time_s, 1e-9) for row in rows]
    # Normal equations in plain floats: a library's result could differ in the last digit on another machine, and the
    # result would not be believed there.
    a, b = [1 / t for t in times_s], [row.bytes / t for row, t in zip(rows, times_s, strict=True)]
    aa, ab, bb = _product(a, a), _product(a, b), _product(b, b)
    determinant = aa * bb - ab * ab
    alpha = (math.fsum(a) * bb - math.fsum(b) * ab) / determinant if determinant else 0.0
    beta = (math.fsum(b) * aa - math.fsum(a) * ab) / determinant if determinant else 0.0
    if min(alpha, beta) <= 0 or abs((alpha + beta * rows[-1].bytes) / times_s[-1] - 1) > MOST_OFF:
        alpha = min(times_s)
        beta = (times_s[-1] - alpha) / rows[-1].bytes
    return alpha, beta


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(one, other, strict=True))


def slow_pairs(pairs: Sequence[PairRow]) -> tuple[PairRow, ...]:
    """Return the pairs that are far below the fastest one."""
    fastest = max((pair.busbw_gb_per_s for pair in pairs), default=0.0)
    return tuple(pair for pair in pairs if pair.busbw_gb_per_s < SLOW * fastest)


def slow_node(pairs: Sequence[PairRow]) -> str | None:
    """Return the node all of whose pairs are far below every pair of other nodes; None if there is no such node.

    The pairs of other nodes may be uneven, as on a busy network.
    """
    for node in sorted({node for pair in pairs for node in pair.nodes}):
        own = [pair.busbw_gb_per_s for pair in pairs if node in pair.nodes]
        others = [pair.busbw_gb_per_s for pair in pairs if node not in pair.nodes]
        if others and max(own) < SLOW * min(others):
            return node
    return None
