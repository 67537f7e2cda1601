"""Findings on what the runs used: each once for all scales. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace

from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.gates.usage_findings import ScaleFinding


def findings_across_scales(points: Sequence[ScalePoint]) -> list[tuple[ScaleFinding, list[ScalePoint]]]:
    """Return each finding once, with all points that have it, in the words of the largest scale.

    What all nodes of several scales have is one finding, and so is what the same node or GPU has at several scales.
    """
    found: dict[Hashable, list[tuple[ScaleFinding, ScalePoint]]] = {}
    for point in points:
        numbers: Counter[Hashable] = Counter()
        for each in point.findings:
            place = (each.kind, _place(each, point))
            numbers[place] += 1
            found.setdefault((place, numbers[place]), []).append((each, point))
    several_series = len({(point.mode, point.variant) for point in points if not point.is_plain}) > 1
    return [(_of_largest(several, several_series), [point for _, point in several]) for several in found.values()]


def other_processes(*points: ScalePoint | None) -> ScaleFinding | None:
    """Return the finding on other processes, with its place, of the first point that has one.

    Where it is, no other cause can be told.
    """
    found = ((point, each) for point in points if point for each in point.findings if each.kind == "other processes")
    return next((replace(each, what=f"at {point.scale}, {each.what}") for point, each in found), None)


def _place(finding: ScaleFinding, point: ScalePoint) -> Hashable:
    """Return what a finding shares with the same one of another scale; some nodes of a scale are only that scale's."""
    if finding.everywhere:
        return None
    return (finding.node, finding.gpu) if finding.node else point.place(several_series=True)


def _of_largest(several: Sequence[tuple[ScaleFinding, ScalePoint]], several_series: bool) -> ScaleFinding:
    """Return the finding of the largest scale. If several scales have it, it says of which its figures are."""
    finding, point = max(several, key=lambda each: (each[1].world_size, each[1].nodes))
    if len(several) == 1:
        return finding
    return replace(finding, what=f"{finding.what} (as measured at {point.place(several_series)})")
