"""Findings on what the runs used: each once for all scales. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.gates.usage_findings import ScaleFinding


def findings_across_scales(points: Sequence[ScalePoint]) -> list[tuple[ScaleFinding, list[ScalePoint]]]:
    """Return each finding once, with all points that have it, in the words of the largest scale."""
    found: dict[Hashable, tuple[ScaleFinding, list[ScalePoint]]] = {}
    for point in points:
        for each in point.findings:
            place = (each.node, each.gpu) if each.kind == "slow node" else None
            known = found.get((each.kind, place))
            where = [*known[1], point] if known else [point]
            largest = not known or point.world_size >= max(other.world_size for other in known[1])
            found[(each.kind, place)] = (each if largest or not known else known[0], where)
    return list(found.values())
