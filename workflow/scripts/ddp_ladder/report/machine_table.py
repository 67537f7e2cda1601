"""The report's line on the machine: what the nodes are made of, with places where they differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddp_ladder.common.formats import in_short
from ddp_ladder.nodes.describe import Machine


def machine_lines(machines: Mapping[str, Sequence[Machine]]) -> tuple[str, ...]:
    """Return a line for each kind of node: one, unless nodes differ. machines: the nodes of each scale."""
    places: dict[str, dict[str, list[str]]] = {}
    for scale, nodes in machines.items():
        for machine in nodes:
            places.setdefault(machine.in_words, {}).setdefault(scale, []).append(machine.node)
    if len(places) == 1:
        return tuple(places)
    return tuple(f"{words} (at {_places(where, machines)})" for words, where in places.items())


def _places(where: Mapping[str, Sequence[str]], machines: Mapping[str, Sequence[Machine]]) -> str:
    """Return ``1x1, 2x4 on node1``: a scale alone stands for all its nodes."""
    return ", ".join(
        scale if len(nodes) == len(machines[scale]) else f"{scale} on {in_short(nodes)}"
        for scale, nodes in where.items()
    )
