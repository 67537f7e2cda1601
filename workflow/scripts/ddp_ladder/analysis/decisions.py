"""What to ask for, decided once from the points: the recommended and the cheapest scale of each mode. Pure.

Page, proposal and forms only word it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddp_ladder.common.formats import interval, percent
from ddp_ladder.gates.points import ScalePoint, Status
from ddp_ladder.settings.terms import REFERENCE_VARIANT

DEFAULT_EFFICIENCY = 0.75  # what centres ask for: CSC, NCI
USABLE: tuple[Status, ...] = ("ok", "incomplete")  # a suspect point, above the ideal, is not recommended


@dataclass(frozen=True)
class Decision:
    """What is decided of one mode.

    points: the measured ones of the reference variant, or else of the first. recommended: None if nothing compares;
    rule: why that scale. doubt: why it is not certain; empty if it is. whole: hours are wall time.
    """

    mode: str
    points: tuple[ScalePoint, ...]
    recommended: ScalePoint | None
    rule: str
    doubt: str

    @property
    def whole(self) -> bool:
        """True if the wall time of a training is known at all usable scales: else hours are those of its steps."""
        return all(point.wall_hours_to_solution is not None for point in self._usable)

    def hours(self, point: ScalePoint) -> float | None:
        """Return the hours of one training at a scale; None if they are not known."""
        return point.wall_hours_to_solution if self.whole else point.hours_to_solution

    def cheapest(self, per_node: bool) -> ScalePoint | None:
        """Return the scale of the fewest node hours, or else GPU hours, of one training; None if they are not known."""
        known = [(hours, point) for point in self._usable if (hours := self.hours(point)) is not None]

        def cost(found: tuple[float, ScalePoint]) -> float:
            return found[0] * (found[1].nodes if per_node else found[1].world_size)

        return min(known, key=cost)[1] if known else None

    @property
    def _usable(self) -> tuple[ScalePoint, ...]:
        return tuple(point for point in self.points if point.status in USABLE)


def decide(points: Sequence[ScalePoint], thresholds: Mapping[str, float | None]) -> tuple[Decision, ...]:
    """Return a decision for each mode that was measured. thresholds: what each stage's gate asks for."""
    return tuple(_decided(series, thresholds) for series in reference_series(points))


def reference_series(points: Sequence[ScalePoint]) -> list[tuple[ScalePoint, ...]]:
    """Return the measured points of each mode, of the reference variant or else of the first."""
    measured = [point for point in points if point.samples_per_s is not None and not point.is_plain]
    found = []
    for mode in dict.fromkeys(point.mode for point in measured):
        own = [point for point in measured if point.mode == mode]
        names = [point.variant for point in own]
        variant = REFERENCE_VARIANT if REFERENCE_VARIANT in names else names[0]
        found.append(tuple(point for point in own if point.variant == variant))
    return found


def _decided(series: tuple[ScalePoint, ...], thresholds: Mapping[str, float | None]) -> Decision:
    """Recommend the largest scale that is as efficient as its gate, or most centres, ask for, and the fastest so far.

    A gate may ask for so little that a larger scale is slower than a smaller one.
    """
    chosen, most, slower = None, 0.0, False

    def asked(point: ScalePoint) -> float:
        wanted = thresholds.get(point.stage)
        return DEFAULT_EFFICIENCY if wanted is None else wanted

    for point in sorted(series, key=lambda point: (point.world_size, point.samples_per_s or 0.0)):
        if point.efficiency is None or point.samples_per_s is None or point.status not in USABLE:
            continue
        if point.efficiency >= asked(point):
            slower = point.samples_per_s <= most
            chosen = chosen if slower else point
        most = max(most, point.samples_per_s)
    if chosen is None:
        return Decision(series[0].mode, series, None, "", "")
    source = "most centres ask for" if thresholds.get(chosen.stage) is None else f"the gate of {chosen.stage} asks for"
    least = percent(asked(chosen))
    rule = f"the largest scale whose efficiency against {chosen.baseline} is at least {least}, as {source}"
    rule += ", and that is faster than all smaller ones" * slower
    return Decision(chosen.mode, series, chosen, rule, _doubt(chosen, asked))


def _doubt(point: ScalePoint, asked: Callable[[ScalePoint], float]) -> str:
    """Return why a scale is not certain to be the right one; empty if it is. One repeat shows no scatter."""
    if point.is_baseline:
        return ""
    low, high = point.efficiency_low, point.efficiency_high
    if low is None or high is None:
        return "the efficiency has no interval" if point.repeats > 1 else "this is an estimate from one repeat"
    if low < asked(point):
        return f"the 95 % interval of the efficiency, {interval(percent(low), percent(high))}, contains less"
    return ""
