"""What to ask for, decided once from the points: the recommended and the cheapest scale of each mode. Pure.

Page, proposal, forms and watch only word it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddp_ladder.common.formats import full_stop, percent
from ddp_ladder.common.grouping import grouped
from ddp_ladder.gates.points import ScalePoint, Status
from ddp_ladder.gates.verdict import doubts_of_efficiency
from ddp_ladder.settings.terms import REFERENCE_VARIANT

DEFAULT_EFFICIENCY = 0.75  # what centres ask for: CSC, NCI
USABLE: tuple[Status, ...] = ("ok", "incomplete")  # a suspect point, above the ideal, is not recommended


@dataclass(frozen=True)
class Decision:
    """What is decided of one mode."""

    mode: str
    points: tuple[ScalePoint, ...]  # the measured ones of the reference variant, or else of the first
    whole: bool  # hours are wall time, and otherwise of the steps
    recommended: ScalePoint | None = None  # None: nothing compares
    rule: str = ""  # why that scale
    doubt: str = ""  # a sentence on why it is not certain; empty if it is

    def hours(self, point: ScalePoint) -> float | None:
        """Return the hours of one training at a scale; None if they are not known."""
        return point.wall_hours_to_solution if self.whole else point.hours_to_solution

    def cheapest(self, per_node: bool) -> ScalePoint | None:
        """Return the scale of the fewest node hours, or else GPU hours, of one training; None if they are not known."""
        costs = [
            (hours * (point.nodes if per_node else point.world_size), point)
            for point in _usable(self.points)
            if (hours := self.hours(point)) is not None
        ]
        return min(costs, key=lambda cost: cost[0])[1] if costs else None


def decide(points: Sequence[ScalePoint], thresholds: Mapping[str, float | None]) -> tuple[Decision, ...]:
    """Return a decision for each mode that was measured. thresholds: what each stage's gate asks for.

    Hours are wall time if it is known at every usable scale of every mode: one table compares all of them.
    """
    every = reference_series(points)
    whole = all(point.wall_hours_to_solution is not None for series in every for point in _usable(series))
    return tuple(_decided(series, thresholds, whole) for series in every)


def _usable(series: Sequence[ScalePoint]) -> list[ScalePoint]:
    return [point for point in series if point.status in USABLE]


def reference_series(points: Sequence[ScalePoint]) -> list[tuple[ScalePoint, ...]]:
    """Return the measured points of each mode, of the reference variant or else of the first."""
    series, known = [], (point for point in points if point.samples_per_s is not None and not point.is_plain)
    for measured in grouped((point.mode, point) for point in known).values():
        is_reference = any(point.variant == REFERENCE_VARIANT for point in measured)
        variant = REFERENCE_VARIANT if is_reference else measured[0].variant
        series.append(tuple(point for point in measured if point.variant == variant))
    return series


def _is_faster(point: ScalePoint, other: ScalePoint) -> bool:
    """Return True if the interval of their ratio shows it, in whatever jobs; of single repeats, the estimate's."""
    if point.log_rate is None or other.log_rate is None or not point.samples_per_s or not other.samples_per_s:
        return False
    ratio, log = point.samples_per_s / other.samples_per_s, point.log_rate.over(other.log_rate)
    low, _ = log.of_estimate.interval_of_any_job(ratio)
    return low is not None and low > 1


def _decided(series: tuple[ScalePoint, ...], thresholds: Mapping[str, float | None], whole: bool) -> Decision:
    """Recommend the largest scale that is as efficient as its gate, or most centres, ask for, and the fastest so far.

    A gate may ask for so little that a larger scale is no faster than a smaller one, or that nothing shows that it is.
    """
    chosen, smaller, no_faster = None, list[ScalePoint](), False

    def asked(point: ScalePoint) -> float:
        wanted = thresholds.get(point.stage)
        return DEFAULT_EFFICIENCY if wanted is None else wanted

    for point in sorted(_usable(series), key=lambda point: (point.world_size, point.nodes)):
        if point.efficiency is None or point.samples_per_s is None:
            continue
        if point.efficiency >= asked(point):
            no_faster = not all(_is_faster(point, other) for other in smaller)
            chosen = chosen if no_faster else point
        smaller.append(point)
    if chosen is None:
        return Decision(series[0].mode, series, whole)
    source = "most centres ask for" if thresholds.get(chosen.stage) is None else f"the gate of {chosen.stage} asks for"
    least = percent(asked(chosen))
    rule = f"the largest scale whose efficiency against {chosen.baseline} is at least {least}, as {source}"
    rule += ", and that its interval shows to be faster than all smaller ones" * no_faster
    doubts = doubts_of_efficiency(asked(chosen), chosen, series)
    what = f"Whether the efficiency of {chosen.scale} ({chosen.mode} scaling) is at least {least} is uncertain"
    doubt = f"{what}: {full_stop(doubts)}" if doubts else ""
    return Decision(chosen.mode, series, whole, chosen, rule, doubt)
