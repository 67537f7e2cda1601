"""The figures of a scale against the thresholds of its stage's gate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddp_ladder.gates.attribution import Attribution, attribution, baseline_of
from ddp_ladder.gates.figures import EFFICIENCY, SAMPLES_PER_S, Column
from ddp_ladder.gates.file import Finding
from ddp_ladder.gates.interval import repeats_for
from ddp_ladder.gates.link import Link
from ddp_ladder.gates.notes import waits_longer
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.plan.plan import Plan
from ddp_ladder.records.fingerprint import MUST_MATCH
from ddp_ladder.records.record import SAMPLES_PER_TIME
from ddp_ladder.settings.compared_fields import MAY_DIFFER
from ddp_ladder.settings.terms import MOST_REPEATS

EFFICIENCY_TEXT = ("efficiency", EFFICIENCY, "efficiency {:.2f}", "{:.2f}")


@dataclass(frozen=True)
class _Threshold:
    """A gate's threshold for one figure, and what was measured.

    estimate: the figure and the ends of its 95 % interval (value, low, high); None if it could not be measured.
    """

    check: str
    estimate: tuple[float, float, float] | None
    least: float
    measured: str
    wanted: str
    next: str
    lost: Attribution | None

    def judged(self, point: ScalePoint, certain: bool) -> Finding:
        """Judge the estimate; with ``certain``, judge the lower end of its interval."""
        if self.estimate is None:
            return _finding(point, self.check, False, self.measured, self.wanted, self.next)
        value, low, high = self.estimate
        ok = (low if certain else value) >= self.least
        measured, next_step = self.measured, "" if ok else self.next
        if not ok and self.lost:
            measured += f"; {self.lost.in_words}"
        inside = low < self.least <= high
        if inside and not (certain and value < self.least):
            repeats = self._deciding_repeats(point.repeats)
            decided = f"about {repeats} repeats would decide it" if repeats else "more repeats would hardly decide it"
            measured += f", {'not certain' if certain else 'uncertain'}: {decided}"
            advice = f"set repeats: {repeats}, which keeps what is measured" if repeats else ""
            next_step = "; or ".join(filter(None, (advice, next_step)))
        uncertain = inside and not certain
        found = _finding(point, self.check, ok, measured, self.wanted, next_step, uncertain=uncertain)
        return replace(found, shown_by=self.lost.losses[0].evidence) if not ok and self.lost else found

    def _deciding_repeats(self, repeats: int) -> int | None:
        """Return about how many repeats would decide; None if the estimate is too close to the threshold."""
        value, low, high = self.estimate or (0.0, 0.0, 0.0)
        distance = abs(value - self.least)
        half_width = value - low if value >= self.least else high - value
        return repeats_for(repeats, half_width / distance, MOST_REPEATS) if distance else None


def performance(
    plan: Plan, point: ScalePoint, points: Sequence[ScalePoint], results: Path, link: Link | None = None
) -> Iterator[Finding]:
    """Judge one scale by its stage's gate. A figure that cannot be computed does not pass.

    points: those of all scales, the baseline included. results: where the runs are, for advice on what to delete.
    link: what the scale's preflight measured.
    """
    if point.allowed:
        measured = f"allowed to differ: {point.allowed}"
        yield _finding(point, "like for like", True, measured, "equal, or named in fingerprint.may_differ")
    gate = plan.gates[point.stage]
    yield from _more_than_ideal(point, points, gate.max_efficiency, results)
    lost = attribution(point, baseline_of(point, points), link)
    for threshold in _thresholds(plan, point, lost):
        yield threshold.judged(point, gate.certain)
    if gate.max_data_wait_fraction is not None:
        yield _data_wait(point, gate.max_data_wait_fraction, gate.certain)


def _thresholds(plan: Plan, point: ScalePoint, lost: Attribution | None) -> Iterator[_Threshold]:
    gate, key = plan.gates[point.stage], f"stages.{point.stage}.gate"
    least = "the interval's lower end at least" if gate.certain else "at least"
    statistic = f", {SAMPLES_PER_TIME}" if point.statistic == SAMPLES_PER_TIME else ""
    if gate.min_efficiency is not None:
        yield _Threshold(
            "efficiency",
            EFFICIENCY.estimate(point),
            gate.min_efficiency,
            _measured(point, *EFFICIENCY_TEXT) + statistic,
            f"{least} {gate.min_efficiency:.2f} ({key}.min_efficiency)",
            f"{_to_be_faster(point, lost)}; or lower {key}.min_efficiency if this is good enough for you"
            if point.efficiency is not None
            else _to_be_comparable(plan, point),
            lost,
        )
    if gate.min_samples_per_s is not None:
        yield _Threshold(
            "throughput",
            SAMPLES_PER_S.estimate(point),
            gate.min_samples_per_s,
            _measured(point, "throughput", SAMPLES_PER_S, "{:,.0f} samples/s", "{:,.0f}") + statistic,
            f"{least} {gate.min_samples_per_s:,.0f} samples/s ({key}.min_samples_per_s)",
            f"{_to_be_faster(point, lost)}; or lower {key}.min_samples_per_s",
            lost,
        )


def _to_be_faster(point: ScalePoint, lost: Attribution | None) -> str:
    if lost:
        return lost.next
    return f"make {point.baseline} faster first: more loader workers, a larger workload.batch_per_gpu"


def _data_wait(point: ScalePoint, most: float, certain: bool) -> Finding:
    """Judge the data wait. It has no interval: with ``certain``, the repeat that waited longest is judged."""
    key = f"stages.{point.stage}.gate.max_data_wait_fraction"
    value = point.data_wait_fraction_max if certain else point.data_wait_fraction
    ok = value is not None and value <= most
    measured = f"{100 * (value or 0):.1f} % of the step time{' in the longest of the repeats' if certain else ''}"
    advice = f"give the script more loader workers, or raise {key}"
    if value is None:
        measured, advice = "it was not measured", f"remove {key}: only what the instrument sees has a data wait"
    return _finding(point, "data wait", ok, measured, f"at most {100 * most:.1f} % ({key})", "" if ok else advice)


def _more_than_ideal(point: ScalePoint, points: Sequence[ScalePoint], most: float, results: Path) -> Iterator[Finding]:
    """Yield a failed finding if the efficiency is above ``most``: then the baseline was measured too slow."""
    baseline = baseline_of(point, points)
    if baseline is None or point.efficiency_low is None or point.efficiency_low <= most:
        return
    runs = results / "runs" / point.variant / point.mode / point.baseline
    where = f"the node{'s' if baseline.nodes > 1 else ''} of {point.baseline}"
    advice = (
        f"look for other load on {where}, delete {runs} and start snakemake again: the baseline is "
        "measured again, and all gates are judged again"
    )
    if waits_longer(baseline.data_wait_fraction, point.data_wait_fraction):
        advice = f"give the script more loader workers, so that {point.baseline} does not wait for data; or {advice}"
    elif point.mode == "strong":
        slow = f"the batch of {point.baseline_in_words} is slow by itself"
        advice += f"; if it stays so, {slow}: lower workload.batch_per_gpu"
    key = f"stages.{point.stage}.gate.max_efficiency"
    advice += f"; or raise {key} if you know why the larger scale does better"
    measured = f"{_measured(point, *EFFICIENCY_TEXT)}: more than the ideal"
    yield _finding(point, "baseline", False, measured, f"an interval that reaches down to {most:g} ({key})", advice)


def _measured(point: ScalePoint, name: str, column: Column, text: str, end: str) -> str:
    """Return a figure with its interval in the unit of its threshold, or why there is none."""
    estimate = column.estimate(point)
    if estimate is None:
        return f"no {name}: {point.status}{': ' if point.note else ''}{point.note}"
    value, low, high = estimate
    interval = f" (95 % interval {end.format(low)} to {end.format(high)})" if low < high else ""
    return text.format(value) + interval


def _to_be_comparable(plan: Plan, point: ScalePoint) -> str:
    """Return what to do when there is no efficiency."""
    if not point.differing:
        return "make the runs comparable: see the note of this scale in the report"
    text = f"make the runs comparable: give all scales and repeats the same {', '.join(point.differing)}"
    text += "".join(f"; {item.next}" for item in MUST_MATCH if item.next and item.name in point.differing)
    if set(point.differing) <= set(MAY_DIFFER):
        names = ", ".join((*plan.may_differ, *point.differing))
        text += (
            f"; where the difference is meant, write `fingerprint: {{may_differ: [{names}]}}` in config.yaml: "
            "the gates are then judged again, and nothing is measured again"
        )
    return text


def _finding(
    point: ScalePoint, check: str, ok: bool, measured: str, wanted: str, next_step: str = "", uncertain: bool = False
) -> Finding:
    return Finding(
        point.variant, point.mode, str(point.scale), None, check, ok, measured, wanted, next_step, uncertain=uncertain
    )
