"""Which node makes the collectives fail, by launches on parts of a scale's nodes. Pure.

It is for failures that no rank explains: every rank waits for the others.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from ddp_ladder.common.formats import in_short
from ddp_ladder.preflight.result import PartRow

LEAST_NODES = 3  # of two nodes, either may be the cause
MOST_PAIRS = 4  # across two halves


def parts(nodes: Sequence[int]) -> Generator[tuple[int, ...], bool, None]:
    """Yield parts of the nodes to launch on; each is answered with whether its ranks came to their end.

    The failing half is halved again, down to two nodes, each of which then meets a node of a half that works. If both
    halves work, pairs across them do not.
    """
    suspects, works = list(nodes), list[int]()
    while len(suspects) > 2:
        middle = len(suspects) // 2
        failing = None
        for half, other in ((suspects[:middle], suspects[middle:]), (suspects[middle:], suspects[:middle])):
            if len(half) < 2:
                continue
            if (yield tuple(half)):
                works += half
            elif failing is None:
                failing, alone = half, other
        if failing is None:
            for pair in zip(suspects[:middle][:MOST_PAIRS], suspects[middle:], strict=False):
                if not (yield pair):
                    return
            return
        if len(alone) < 2:
            works += alone  # not known to fail
        suspects = failing
    for suspect in suspects:
        if works and not (yield (suspect, works[-1])):
            return


def culprits(all_nodes: Sequence[str], rows: Sequence[PartRow]) -> tuple[str, ...]:
    """Return the nodes that are in every part that failed, and in none that worked.

    If there is none, those of the smallest part that failed; empty if no part did.
    """
    failed = [set(row.nodes) for row in rows if not row.ok]
    well = {node for row in rows if row.ok for node in row.nodes}
    always = [node for node in all_nodes if all(node in nodes for nodes in failed) and node not in well]
    if always or not failed:
        return tuple(always if failed else ())
    smallest = min(failed, key=len)
    return tuple(node for node in all_nodes if node in smallest)


def in_words(rows: Sequence[PartRow]) -> str:
    """Return ``alone, node1, node2 work; node3, node4 do not``."""
    well = [in_short(list(row.nodes)) for row in rows if row.ok]
    failed = [in_short(list(row.nodes)) for row in rows if not row.ok]
    said = [f"{' and '.join(well)} work without the others"] if well else []
    return "; ".join([*said, *([f"{' and '.join(failed)} do not"] if failed else [])])
