"""The figures of a scale against the thresholds of its stage's gate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddp_ladder.common.formats import significant
from ddp_ladder.gates.across_scales import other_processes
from ddp_ladder.gates.attribution import Attribution, attribution, baseline_of
from ddp_ladder.gates.figures import EFFICIENCY, SAMPLES_PER_S, Column
from ddp_ladder.gates.file import Finding
from ddp_ladder.gates.interval import LogMean, Variance, deciding_repeats
from ddp_ladder.gates.link import Link
from ddp_ladder.gates.notes import waits_longer
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.plan.plan import Plan
from ddp_ladder.records.fingerprint import MUST_MATCH
from ddp_ladder.records.record import SAMPLES_PER_TIME
from ddp_ladder.settings.compared_fields import MAY_DIFFER
from ddp_ladder.settings.terms import MOST_REPEATS

WHAT_IS_IN_NO_STEP = (
    "look at what the script does in the time that is in no step: if it is part of the training, only samples / time "
    "of the whole loop holds"
)
EFFICIENCY_TEXT = ("efficiency", EFFICIENCY, "efficiency {}", "{:.2f}".format)


@dataclass(frozen=True)
class _Threshold:
    """A gate's threshold for one figure, and what was measured.

    value: None if it could not be measured. log: with its uncertainty; None if it is exact, as at the baseline.
    end: how an end of the interval is written.
    """

    check: str
    value: float | None
    log: LogMean | None
    end: Callable[[float], str]
    least: float
    measured: str
    wanted: str
    next: str
    lost: Attribution | None

    def judged(self, point: ScalePoint, certain: bool) -> Finding:
        """Judge the estimate; with ``certain``, judge the lower end of the interval that holds what jobs differ by."""
        if self.value is None:
            return _finding(point, self.check, False, self.measured, self.wanted, self.next)
        doubt, advice = self._doubt(point)
        ok = self.value >= self.least and not (certain and doubt)
        measured, next_step = self.measured, "" if ok else self.next
        if not ok and self.lost:
            measured += f"; {self.lost.in_words}"
        if doubt and not (certain and self.value < self.least):
            measured += f", {'not certain' if certain else 'uncertain'}: {doubt}"
            next_step = "; or ".join(filter(None, (advice, next_step)))
        uncertain = bool(doubt) and not certain
        found = _finding(point, self.check, ok, measured, self.wanted, next_step, uncertain=uncertain)
        return replace(found, shown_by=self.lost.losses[0].evidence) if not ok and self.lost else found

    def _doubt(self, point: ScalePoint) -> tuple[str, str]:
        """Return why the verdict is not certain, and what to set; empty if it is certain."""
        unsteady = ("the step times were not steady", point.unsteady) if point.unsteady else ("", "")
        log, value = self.log, self.value
        if log is None or value is None:
            return unsteady
        if log.repeats is None:
            return "this is an estimate from one repeat", "set repeats: 3, which keeps what is measured"
        low, high = log.interval_of_any_job(value)
        if low is None or high is None:
            return "its interval is wider than a factor of 4", f"set repeats: {point.repeats + 2}, which keeps the rest"
        if not low < self.least <= high:
            return unsteady
        shown_low, shown_high = log.interval(value)
        apart = (shown_low or 0) >= self.least or (shown_high or math.inf) < self.least
        other = f"in other jobs it may be {self.end(low)} to {self.end(high)}; " if apart else ""
        recurring = point.statistic == SAMPLES_PER_TIME  # of which few repeats do not show how many would decide
        if not recurring and (repeats := deciding_repeats(log, self.least, point.repeats, MOST_REPEATS)):
            advice = f"set repeats: {math.ceil(repeats / log.jobs)}, which keeps what is measured"
            return f"{other}about {repeats} repeats would decide it", advice
        if log.between.value >= max(log.repeats.value, log.steps.value):
            key = f"stages.{point.stage}.gate.jobs_differ_percent"
            more = f"set jobs: {log.jobs + 1} (on Slurm), which keeps what is measured and shows what jobs differ by"
            advice = f"{more}; or lower {key} if it is less here"
            return f"{other}more jobs would tell, more repeats in the same job would not", advice
        if recurring:
            return f"{other}slow steps recur, and longer runs would tell", "raise measure.max_steps, or train longer"
        return f"{other}more repeats would hardly decide it", ""


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
    baseline = baseline_of(point, points)
    found = [(each, each.measured) for each in _more_than_ideal(point, points, gate.max_efficiency, results)]
    for threshold in _thresholds(plan, point, attribution(point, baseline, link)):
        judged = _doubted(threshold.judged(point, gate.certain), point, baseline, gate.certain)
        found.append((judged, threshold.measured))
    disturbed = other_processes(point, baseline)
    for each, measured in found:
        if disturbed and not each.ok:
            measured += f"; {disturbed.in_words}"
            yield replace(each, measured=measured, next=disturbed.next, shown_by=())
        else:
            yield each
    if gate.max_data_wait_fraction is not None:
        yield _data_wait(point, gate.max_data_wait_fraction, gate.certain)


def _doubted(finding: Finding, point: ScalePoint, baseline: ScalePoint | None, certain: bool) -> Finding:
    """Return the finding, not certain if here or at the baseline time that may be training is in no step."""
    doubted = next((each for each in (point, baseline) if each and each.unexplained), None)
    if doubted is None:
        return finding
    return replace(
        finding,
        ok=finding.ok and not certain,
        uncertain=not certain,
        measured=f"{finding.measured}, {'not certain' if certain else 'uncertain'}: at {doubted.scale} "
        f"{doubted.unexplained}",
        next="; or ".join(filter(None, (WHAT_IS_IN_NO_STEP, finding.next))),
    )


def _thresholds(plan: Plan, point: ScalePoint, lost: Attribution | None) -> Iterator[_Threshold]:
    gate, key = plan.gates[point.stage], f"stages.{point.stage}.gate"
    least = "the interval's lower end at least" if gate.certain else "at least"
    statistic = f", {SAMPLES_PER_TIME}" if point.statistic == SAMPLES_PER_TIME else ""
    if gate.min_efficiency is not None:
        yield _Threshold(
            "efficiency",
            point.efficiency,
            point.log_efficiency,
            EFFICIENCY_TEXT[-1],
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
            point.samples_per_s,
            point.log_rate,
            significant,
            gate.min_samples_per_s,
            _measured(point, "throughput", SAMPLES_PER_S, "{} samples/s", significant) + statistic,
            f"{least} {significant(gate.min_samples_per_s)} samples/s ({key}.min_samples_per_s)",
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
    """Yield a failed finding if the efficiency is above ``most`` in any job: the baseline was measured too slow."""
    baseline, log = baseline_of(point, points), point.log_efficiency
    if baseline is None or log is None or point.efficiency is None:
        return
    known = replace(log, repeats=log.repeats or Variance())  # of one repeat, the estimate is judged
    low, _ = known.interval_of_any_job(point.efficiency)
    if low is None or low <= most:
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
    wanted = f"an interval that reaches down to {most:g} ({key})"
    yield _finding(point, "baseline", False, measured, wanted, advice, uncertain=log.repeats is None)


def _measured(point: ScalePoint, name: str, column: Column, text: str, shown: Callable[[float], str]) -> str:
    """Return a figure with its interval in the unit of its threshold, or why there is none."""
    value, low, high = (getattr(point, key) for key in column.keys)
    if value is None:
        return f"no {name}: {point.status}{': ' if point.note else ''}{point.note}"
    several = point.log_rate is not None and point.log_rate.jobs > 1
    of = f"over {point.jobs} jobs" if several else "in one job"
    known = low is not None and high is not None and low < high
    return text.format(shown(value)) + (f" (95 % interval {shown(low)} to {shown(high)}, {of})" if known else "")


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
