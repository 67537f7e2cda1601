"""Where a fault of the network is: the smallest set of nodes, links or groups of nodes that explains which links work.

Pure. Nodes are numbers. The cost grows with the links, but for a factor of their logarithm.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddp_ladder.common.formats import grouped

Link = tuple[int, int]  # the lower node first
MOST_GROUPS = 8  # that a network is cut into; more of them are made by links
MOST_NODES, SHARE = 16, 4  # more nodes than these, or than this part of all, do not break at the same time


@dataclass(frozen=True)
class Location:
    """What is wrong."""

    nodes: tuple[int, ...] = ()  # no link of these works
    links: tuple[Link, ...] = ()  # both of its nodes work
    groups: tuple[tuple[int, ...], ...] = ()  # of nodes between which no link works


def most_at_once(nodes: int) -> int:
    """Return how many of so many nodes may be broken, each by itself; more have a cause in common."""
    return max(1, min(MOST_NODES, nodes // SHARE))


def locate(links: Mapping[Link, bool | None]) -> Location:
    """Return the cause. links: whether each works; None: not tested.

    A node is a cause if none of its links works: each that has a link to a node with another one that works, and of the
    others the one with most links first. Of a single link that does not work, either node may be the cause.
    """
    failed = [link for link, works in links.items() if works is False]
    sound = {node for link, works in links.items() if works is not False for node in link}
    ends: dict[int, set[int]] = {}  # of links that are not explained
    for a, b in failed:
        ends.setdefault(a, set()).add(b)
        ends.setdefault(b, set()).add(a)
    nodes: list[int] = []

    def blame(node: int) -> None:
        nodes.append(node)
        for other in ends.pop(node):
            ends[other].discard(node)
            if other not in sound:
                heapq.heappush(order, (-len(ends[other]), other))

    order: list[tuple[int, int]] = []
    for node in [node for node in ends if node not in sound and ends[node] & sound]:
        blame(node)
    order = [(-len(others), node) for node, others in ends.items() if node not in sound]
    heapq.heapify(order)
    while order:
        number, node = heapq.heappop(order)
        if number < -1 and len(ends.get(node, ())) == -number:
            blame(node)
    left = [(a, b) for a, b in failed if a in ends and b in ends]
    group_of = _groups(links)
    between = [link for link in left if group_of[link[0]] != group_of[link[1]]]
    apart = {group_of[node] for link in between for node in link}
    if len(between) < 2 or len(apart) > MOST_GROUPS:  # a ring that is cut has two, if no node is a cause beside one
        return Location(tuple(sorted(nodes)), tuple(sorted(left)))
    return Location(tuple(sorted(nodes)), tuple(sorted({*left} - {*between})), _apart(group_of, between))


def _apart(group_of: Mapping[int, int], between: Sequence[Link]) -> tuple[tuple[int, ...], ...]:
    """Return the groups between which links do not work, those as one between which none was tested."""
    ends = [(group_of[a], group_of[b]) for a, b in between]
    others = grouped((one, other) for a, b in ends for one, other in ((a, b), (b, a)))
    members = grouped((group, node) for node, group in sorted(group_of.items()) if group in others)
    number: dict[int, int] = {}
    for group in sorted(members, key=lambda each: -len(members[each])):
        taken = {number.get(other) for other in others[group]}
        number[group] = next(k for k in range(len(taken) + 1) if k not in taken)
    united = grouped((number[group], node) for group, several in members.items() for node in several)
    return tuple(tuple(sorted(united[k])) for k in sorted(united))


def _groups(links: Mapping[Link, bool | None]) -> dict[int, int]:
    """Return a node of its group for each: links that work, or were not tested, connect the nodes of a group."""
    first = {node: node for link in links for node in link}

    def of(node: int) -> int:
        while first[node] != node:
            first[node] = node = first[first[node]]
        return node

    for (a, b), works in links.items():
        if works is not False:
            first[of(a)] = of(b)
    return {node: of(node) for node in first}
