"""Findings before it is known on which nodes: the same one on many nodes is reported once. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from ddp_ladder.common.formats import in_short
from ddp_ladder.preflight.finding import PreflightFinding

A_NODE = "{node}"  # in the text of what to do next: one of the nodes of the finding

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Said:
    """A finding without its node."""

    level: Literal["fail", "warn"]
    what: str
    wanted: str
    next: str

    def on(self, node: str | None) -> PreflightFinding:
        return PreflightFinding(level=self.level, node=node, what=self.what, wanted=self.wanted, next=self.next)

    def at(self, names: Sequence[str]) -> PreflightFinding:
        """Return the finding of these nodes, the first of which stands for A_NODE."""
        advice = self.next.replace(A_NODE, names[0]) if names else self.next
        return replace(self, next=advice).on(in_short(names) if names else None)


def fail(what: str, wanted: str, next_step: str) -> Said:
    """Return a finding that keeps the runs from starting."""
    return Said("fail", what, wanted, next_step)


def warn(what: str, wanted: str, next_step: str) -> Said:
    """Return a finding that does not."""
    return Said("warn", what, wanted, next_step)


def merged(findings: Iterable[PreflightFinding]) -> tuple[PreflightFinding, ...]:
    """Return each finding once, in the order of its first node, with the names of all its nodes."""
    nodes: dict[Said, list[str]] = {}
    for each in findings:
        names = nodes.setdefault(Said(each.level, each.what, each.wanted, each.next), [])
        names += [each.node] if each.node else []
    return tuple(said.at([*dict.fromkeys(names)]) for said, names in nodes.items())


def unlike(values: Mapping[str, T | None]) -> Iterator[tuple[str, T, T]]:
    """Yield node, its value and the usual one for nodes that differ; a node whose value is unknown does not.

    The usual value is that of most nodes; among equally many, that of the first node.
    """
    known = {name: value for name, value in values.items() if value is not None}
    if len(set(known.values())) > 1:
        usual = Counter(known.values()).most_common(1)[0][0]
        yield from ((name, value, usual) for name, value in known.items() if value != usual)
