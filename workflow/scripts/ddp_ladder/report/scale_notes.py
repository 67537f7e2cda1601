"""Notes on scales, for every form of the report: equal ones are told once, with their scales. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ddp_ladder.common.formats import in_short
from ddp_ladder.gates.points import ScalePoint

MOST_NAMED = 12  # scales of one note; scaling.csv has the notes of each


def scale_notes(points: Sequence[ScalePoint], several_series: bool) -> tuple[tuple[str, str], ...]:
    """Return each note with the scales that have it: (``1x2 weak gloo, 1x4 weak gloo and 3 more``, the note)."""
    places: dict[str, list[ScalePoint]] = {}
    for point in points:
        if point.note:
            places.setdefault(point.note, []).append(point)
    return tuple((scale_names(where, several_series), note) for note, where in places.items())


def scale_names(points: Sequence[ScalePoint], several_series: bool) -> str:
    """Return the names of scales, of many the first ones. several_series: a scale alone does not identify a point."""
    return in_short([point.place(several_series) for point in points], MOST_NAMED)
