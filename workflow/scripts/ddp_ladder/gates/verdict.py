"""The verdict of a gate: its file and its text, and the findings on a scale by the thresholds of its stage."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from ddp_ladder.common.formats import significant
from ddp_ladder.common.messages import box
from ddp_ladder.common.model import IN_A_MODEL, Model, Several, Version1
from ddp_ladder.gates.attribution import Attribution, Link, attribution, baseline_of
from ddp_ladder.gates.figures import EFFICIENCY, SAMPLES_PER_S, Column
from ddp_ladder.gates.interval import LogMean, Variance, deciding_repeats
from ddp_ladder.gates.notes import waits_longer
from ddp_ladder.gates.points import ScalePoint, other_processes
from ddp_ladder.plan.plan import Plan, ScaleJob
from ddp_ladder.preflight.assemble import believed
from ddp_ladder.preflight.finding import PREFLIGHT_FAILED
from ddp_ladder.records.fingerprint import MUST_MATCH
from ddp_ladder.records.record import SAMPLES_PER_TIME, Evidence, placed, quoted_lines
from ddp_ladder.records.run_records import RunRecords
from ddp_ladder.settings.compared_fields import MAY_DIFFER
from ddp_ladder.settings.terms import MOST_REPEATS, REFERENCE_VARIANT

SANITY = "sanity"  # the name of the one finding for a run that passed all its checks
Word = Literal["open", "closed"]


@dataclass(frozen=True)
class Finding:
    """One finding of a gate: of one variant, mode and scale, and of one repeat if it is a check on one run."""

    __pydantic_config__: ClassVar = IN_A_MODEL
    variant: str
    mode: str
    scale: str
    repeat: int | None
    check: str
    ok: bool
    measured: str
    wanted: str
    next: str
    uncertain: bool = False  # the threshold lies inside the interval
    place: str = ""  # of a failure: rank and node, as far as they are known
    at_s: float | None = None  # of a failure: unix time
    evidence: tuple[Evidence, ...] = ()  # of a failure: the lines that show it
    shown_by: tuple[str, ...] = ()  # of a lost efficiency: the figures that show its largest cause

    @property
    def in_words(self) -> str:
        """Return ``efficiency 0.41``, ``exit codes: rank 1: 3``: the check is not named twice."""
        check = placed(self.check, self.place, self.measured)
        return self.measured if self.measured.startswith(self.check) else f"{check}: {self.measured}"

    @property
    def where(self) -> str:
        place = f"{self.variant}/{self.mode}/{self.scale}"
        return f"{place}/r{self.repeat}" if self.repeat is not None else place


class Verdict(Model):
    """The decision of a stage's gate, with its evidence."""

    schema_version: Version1
    stage: str
    verdict: Word = Field(description="Open: the next stage may start.")
    why: str | None = Field(description="The first finding that closes the gate; null if it is open.")
    wanted: str | None
    next: str | None
    variants: Mapping[str, Word] = Field(description="The gate is open if the default variant passed.")
    judged: Several[Finding]
    points: Several[ScalePoint] = Field(description="Rows of scaling.csv up to this stage.")
    records: Mapping[str, str] = Field(description="SHA-256 of each record that was judged, by path.")

    @property
    def is_open(self) -> bool:
        """Return True if the next stage may start."""
        return self.verdict == "open"

    @property
    def failing(self) -> tuple[Finding, ...]:
        """Return the findings that close the gate or exclude a variant."""
        return tuple(item for item in self.judged if not item.ok)

    @property
    def reason(self) -> Finding | None:
        """Return the first finding that closes the gate; None if it is open."""
        return next((item for item in self.failing if item.variant == REFERENCE_VARIANT), None)

    @property
    def worth_showing(self) -> tuple[Finding, ...]:
        """Return every threshold and every failed check; runs that passed all sanity checks are only counted."""
        return tuple(item for item in self.judged if not item.ok or item.check != SANITY)

    @property
    def sane_runs(self) -> int:
        """Return how many runs passed every sanity check."""
        return sum(item.ok and item.check == SANITY for item in self.judged)

    def verdict_of(self, point: ScalePoint) -> str:
        """Return the verdict on the point's variant; the gate's own verdict if it has none for this variant."""
        return self.variants.get(point.variant, self.verdict)

    def uncertain(self, variant: str) -> tuple[Finding, ...]:
        """Return the findings that make the verdict uncertain; empty if a certain finding closes the gate as well."""
        own = [item for item in self.judged if item.variant == variant]
        failing = [item for item in own if not item.ok]
        deciding = failing or [item for item in own if item.uncertain]
        return tuple(deciding) if all(item.uncertain for item in deciding) else ()

    def words_of(self, point: ScalePoint) -> str:
        """Return ``open`` or ``closed (uncertain)``."""
        return f"{self.verdict_of(point)}{' (uncertain)' if self.uncertain(point.variant) else ''}"


def gate_files(gates: Path, stage: str) -> tuple[Path, Path]:
    """Return the paths of a stage's gate file when open and when closed."""
    return gates / f"{stage}.json", gates / f"{stage}.closed.json"


def closed_variants(gate: Verdict) -> dict[str, str]:
    """Return the variants that did not pass an open gate, with the reason to run them no further."""
    closed = [name for name, verdict in gate.variants.items() if verdict != "open"]
    return {name: f"variant {name} did not pass the gate of {gate.stage}" for name in closed}


def outcome_line(gate: Verdict) -> str:
    """Return ``gate stage2: open`` or ``gate stage2: CLOSED, <why>``."""
    if gate.is_open:
        closed = ", ".join(closed_variants(gate))
        doubts = "; ".join(f"{item.scale} {item.in_words}" for item in gate.uncertain(REFERENCE_VARIANT))
        return (
            f"gate {gate.stage}: open"
            + (f" (without {closed}: see the report)" if closed else "")
            + (f", {doubts}" if doubts else "")
        )
    return f"gate {gate.stage}: CLOSED, {gate.why}"


def closed_box(gate: Verdict) -> str:
    """Return the box that shows why the ladder stopped and what to do next."""
    doubt = " on the estimate, uncertain" if gate.uncertain(REFERENCE_VARIANT) else ""
    closed = f"the gate of {gate.stage} is closed{doubt}; nothing above it was started"
    failed = gate.reason
    if failed is not None and failed.place:
        when = time.strftime(" at %H:%M:%S", time.localtime(failed.at_s)) if failed.at_s else ""
        return box(
            (
                ("verdict", f"{failed.check} ({failed.place}){when}\n{closed}"),
                ("run", failed.where),
                ("why", failed.measured),
                *((("evidence", quoted),) if (quoted := quoted_lines(failed.evidence, failed.measured)) else ()),
                # Of a run it says no more than that it should have ended well.
                *((("wanted", gate.wanted),) if failed.repeat is None else ()),
                ("next", gate.next),
            )
        )
    rows = (
        ("verdict", closed),
        ("measured", gate.why),
        *((("evidence", "\n".join(failed.shown_by)),) if failed and failed.shown_by else ()),
        ("wanted", gate.wanted),
        ("next", gate.next),
    )
    return box(rows)


def preflight_findings(plan: Plan, stage: str, runs: RunRecords) -> Iterator[Finding]:
    """Yield a finding for each scale of a stage whose runs were left out because its preflight failed.

    A preflight counts only for the runs that it left out: those that were made are judged by their own records, also if
    a later preflight of their scale failed, or was switched off, or if its files were deleted.
    """
    for job in plan.stage_jobs(stage):
        if not _left_out(job, runs):
            continue
        try:
            result = believed(runs.results, job.scale)
        except (OSError, ValueError):
            continue  # the runs' own records say why they were left out
        failure = result and result.failure
        if failure:
            place = (REFERENCE_VARIANT, job.runs[0].mode, str(job.scale), None)
            finding = Finding(*place, PREFLIGHT_FAILED, False, failure.in_words, failure.wanted, failure.next)
            yield replace(finding, place=failure.node or str(job.scale))


def _left_out(job: ScaleJob, runs: RunRecords) -> bool:
    """Return True if the record of a run says that a preflight left it out."""
    for spec in job.runs:
        try:
            failure = runs.believed(spec).failure
        except (OSError, ValueError):
            continue
        if failure is not None and failure.why.startswith(PREFLIGHT_FAILED):
            return True
    return False


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
