"""Which pairs of nodes are measured, and in which order. Pure, without torch."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

SLOW = 2.0  # times the shortest time of a pair


def neighbours(nodes: int) -> list[tuple[int, int]]:
    """Return each node with the next one; the last with the first. Two nodes have one pair, which is all of them."""
    return [tuple(sorted((node, (node + 1) % nodes))) for node in range(nodes)] if nodes > 2 else []  # type: ignore[misc]


def rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """Return the neighbours in rounds in which no node is in two pairs: two rounds, three of an odd number of nodes."""
    ring, even = neighbours(nodes), nodes - nodes % 2
    return [pairs for pairs in (ring[0:even:2], ring[1::2], ring[even:]) if pairs]


def checks(nodes: int, times_s: Sequence[float]) -> list[tuple[int, int]]:
    """Return each node of a slow pair with a far one that is in none, no node twice: is it the node, or its link?

    times_s: of the neighbours, in their order; 0: not measured.
    """
    shortest = min((time_s for time_s in times_s if time_s > 0), default=0.0)
    slow = sorted({node for k, pair in enumerate(neighbours(nodes)) if times_s[k] > SLOW * shortest for node in pair})
    free = sorted({*range(nodes)} - {*slow})
    pairs = []
    for node in slow[: len(free)]:
        other = free.pop(bisect.bisect(free, (node + 3 * nodes // 8) % nodes) % len(free))
        pairs.append((min(node, other), max(node, other)))
    return pairs
