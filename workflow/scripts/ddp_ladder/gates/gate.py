"""The gate: the judgement of a stage on its records. Sanity first (did it work), then performance (how well).

Every user of a gate judges it again: a gate file says that a stage was judged, its records say how.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from ddp_ladder.assembly.run_records import RunRecords, as_made
from ddp_ladder.common.files import read_bytes, sha256, write_json, writing
from ddp_ladder.common.findings import Finding, Kind, Severity, deciding
from ddp_ladder.common.formats import count, grouped, significant
from ddp_ladder.common.messages import Problem, UserError, box, numbered
from ddp_ladder.common.model import Model, Several, Version2
from ddp_ladder.gates.attribution import Attribution, attribution, baseline_of, measured_preflight
from ddp_ladder.gates.figures import EFFICIENCY, SAMPLES_PER_S, Column
from ddp_ladder.gates.interval import doubt_in_words
from ddp_ladder.gates.points import ScalePoint, other_processes
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.measuring.fingerprint import MUST_MATCH, OWN_DIRECTORY_ADVICE
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.preflight.result import PREFLIGHT_FAILED, SUPPORT, PreflightResult, bad_nodes, bad_nodes_file
from ddp_ladder.records.record import SAMPLES_PER_TIME, Failure, Record
from ddp_ladder.settings.terms import MAY_DIFFER, MOST_REPEATS, REFERENCE_VARIANT
from ddp_ladder.slurm.jobs import read_job_end

NOTABLE_WAIT = 0.05  # fraction of a step: a baseline that waits for data so much longer is slow by it
Word = Literal["open", "closed"]


class Place(NamedTuple):
    """What a finding of a gate is on: a scale, or one of its runs."""

    variant: str
    mode: str
    scale: str
    repeat: str = ""  # ``r2``; empty for a scale

    @classmethod
    def of(cls, finding: Finding) -> Place:
        return cls(*finding.place.split("/"))

    @property
    def of_scale(self) -> str:
        return "/".join(self[:3])


def judged(
    what: RunSpec | ScalePoint, kind: Kind, measured: str, wanted: str, next_step: str = "", *, ok: bool = False
) -> Finding:
    """Return a finding on a run, or on a scale; it closes the gate unless ``ok``."""
    place = what.name if isinstance(what, RunSpec) else f"{what.variant}/{what.mode}/{what.scale}"
    severity: Severity = "note" if ok else "error"
    return Finding(kind=kind, severity=severity, place=place, measured=measured, wanted=wanted, next=next_step)


class Verdict(Model):
    """The decision of a stage's gate, with its evidence."""

    schema_version: Version2
    stage: str
    verdict: Word = Field(description="Open: the next stage may start.")
    why: str | None = Field(description="The first finding that closes the gate; null if it is open.")
    wanted: str | None
    next: str | None
    failure: Failure | None = Field(default=None, description="Of the run, or of the preflight, that closes the gate.")
    variants: Mapping[str, Word] = Field(description="The gate is open if the default variant passed.")
    judged: Several[Finding]
    points: Several[ScalePoint] = Field(description="The figures of each scale up to this stage, as in scaling.csv.")
    records: Mapping[str, str] = Field(description="SHA-256 of each record that was judged, by path.")

    @property
    def is_open(self) -> bool:
        return self.verdict == "open"

    @property
    def failing(self) -> tuple[Finding, ...]:
        """Return the findings that close the gate or exclude a variant."""
        return tuple(item for item in self.judged if not item.ok)

    def of_variant(self, variant: str) -> tuple[Finding, ...]:
        return tuple(item for item in self.judged if Place.of(item).variant == variant)

    @property
    def reason(self) -> Finding | None:
        """Return the first finding that closes the gate; None if it is open."""
        return deciding(self.of_variant(REFERENCE_VARIANT))

    @property
    def worth_showing(self) -> tuple[Finding, ...]:
        """Return every threshold and every failed check; runs that passed all sanity checks are only counted."""
        return tuple(item for item in self.judged if not item.ok or item.kind != "sanity")

    @property
    def sane_runs(self) -> int:
        return sum(item.ok and item.kind == "sanity" for item in self.judged)

    def verdict_of(self, point: ScalePoint) -> str:
        """Return the verdict on the point's variant; the gate's own verdict if it has none for this variant."""
        return self.variants.get(point.variant, self.verdict)

    def uncertain(self, variant: str) -> tuple[Finding, ...]:
        """Return the findings that make the verdict uncertain; empty if a certain finding closes the gate as well."""
        own = self.of_variant(variant)
        failing = [item for item in own if not item.ok]
        decisive = failing or [item for item in own if item.uncertain]
        return tuple(decisive) if all(item.uncertain for item in decisive) else ()


def gate_files(gates: Path, stage: str) -> tuple[Path, Path]:
    """Return the paths of a stage's gate file when open and when closed."""
    return gates / f"{stage}.json", gates / f"{stage}.closed.json"


def closed_variants(gate: Verdict) -> dict[str, str]:
    """Return the variants that did not pass an open gate, with the reason to run them no further."""
    closed = (name for name, verdict in gate.variants.items() if verdict != "open")
    return {name: f"variant {name} did not pass the gate of {gate.stage}" for name in closed}


def outcome_line(gate: Verdict) -> str:
    """Return ``gate stage2: open`` or ``gate stage2: CLOSED, <why>``, with the remark on data that are not divided."""
    own = [item for item in gate.of_variant(REFERENCE_VARIANT) if item.kind == "undivided data"]
    remarks = "".join(f"; {Place.of(item).scale}: {item.measured}; next: {item.next}" for item in own[:1])
    if not gate.is_open:
        return f"gate {gate.stage}: CLOSED, {gate.why}{remarks}"
    closed = ", ".join(closed_variants(gate))
    doubts = "; ".join(f"{Place.of(item).scale} {item.measured}" for item in gate.uncertain(REFERENCE_VARIANT))
    without = f" (without {closed}: see the report)" if closed else ""
    return f"gate {gate.stage}: open{without}{', ' if doubts else ''}{doubts}{remarks}"


def closed_box(gate: Verdict) -> str:
    """Return the box that shows why the ladder stopped and what to do next."""
    doubt = " on the estimate, uncertain" if gate.uncertain(REFERENCE_VARIANT) else ""
    closed = f"the gate of {gate.stage} is closed{doubt}; nothing above it was started"
    failure, reason = gate.failure, gate.reason
    rows: list[tuple[str, str | None]] = [("verdict", closed), ("measured", gate.why)]
    wanted: list[tuple[str, str | None]] = [("wanted", gate.wanted)]
    if failure and failure.place and reason:
        when = time.strftime(" at %H:%M:%S", time.localtime(failure.at_s)) if failure.at_s else ""
        verdict = f"{failure.placed}{when}\n{closed}"
        rows = [("verdict", verdict), ("run", reason.place), ("why", failure.why)]
        wanted = wanted if reason.kind == "preflight" else []  # of a run, only that it should have ended well
    if reason and reason.evidence:
        rows.append(("evidence", "\n".join(reason.evidence)))
    steps = (gate.next or "").split("; or ")
    several = len(steps) > 1 and "\n" not in (gate.next or "")
    return box((*rows, *wanted, ("next", f"one of:\n{numbered(steps)}" if several else gate.next)))


@dataclass(frozen=True)
class _Minimum:
    """A figure of which a gate may ask a minimum."""

    name: Literal["efficiency", "throughput"]
    column: Column
    key: str  # of the threshold
    text: Callable[[float], str]

    def measured(self, point: ScalePoint) -> str:
        """Return the figure with its interval in the unit of its threshold, or why there is none."""
        estimate = self.column.of(point)
        if estimate is None:
            return f"no {self.name}: {point.status}{': ' if point.note else ''}{point.note}"
        words, (low, high) = f"{self.name} {self.text(estimate.value)}", estimate.ends
        if low < high:
            of = f"over {point.jobs} jobs" if point.jobs > 1 else "in one job"
            words += f" (95 % interval {self.text(low)} to {self.text(high)}, {of})"
        return words + (f", {SAMPLES_PER_TIME}" if point.statistic == SAMPLES_PER_TIME else "")


_EFFICIENCY = _Minimum("efficiency", EFFICIENCY, "min_efficiency", lambda fraction: f"{100 * fraction:.1f} %")
_THROUGHPUT = _Minimum("throughput", SAMPLES_PER_S, "min_samples_per_s", lambda rate: f"{significant(rate)} samples/s")


def performance(
    plan: Plan, point: ScalePoint, points: Sequence[ScalePoint], results: Path, preflight: PreflightResult | None = None
) -> Iterator[Finding]:
    """Judge one scale by its stage's gate. A figure that cannot be computed does not pass.

    points: those of all scales, the baseline included. results: where the runs are, for advice on what to delete.
    preflight: that of the scale.
    """
    gate, baseline = plan.gates[point.stage], baseline_of(point, points)
    disturbed = other_processes(point, baseline)
    lost = None if disturbed else attribution(point, baseline, preflight, plan.job(point.scale).transport)
    asked = ((getattr(gate, figure.key), figure) for figure in (_EFFICIENCY, _THROUGHPUT))
    findings = [*_above(gate.max_efficiency, point, baseline, results)]
    findings += [_at_least(least, figure, plan, point, lost) for least, figure in asked if least is not None]
    for finding in findings:
        if disturbed and not finding.ok:
            yield finding.replace(measured=f"{finding.measured}; {disturbed.in_words}", next=disturbed.next)
        else:
            yield finding
    if point.is_baseline and point.differing and gate.min_efficiency is None:
        # Every efficiency of the later stages relates to this scale.
        measured, wanted = f"{point.status}: {point.note}", "the same in all repeats, as this is the baseline"
        yield judged(point, "repeats", measured, wanted, _to_be_comparable(plan, point))
    if gate.max_data_wait_fraction is not None:
        yield _data_wait(point, gate.max_data_wait_fraction)


def _at_least(least: float, figure: _Minimum, plan: Plan, point: ScalePoint, lost: Attribution | None) -> Finding:
    """Judge the estimate. Advice: the cause of the loss first, then the last doubt, as repeats make no steps steady."""
    key = f"stages.{point.stage}.gate.{figure.key}"
    estimate, measured = figure.column.of(point), figure.measured(point)
    wanted = f"at least {figure.text(least)} ({key})"
    if estimate is None:
        return judged(point, figure.name, measured, wanted, _to_be_comparable(plan, point))
    doubts = [*_doubts(least, figure, point)]
    reached, steps = estimate.value >= least, [step for _, step in doubts]
    if not reached:
        first = f"make {point.baseline} faster first: more loader workers, a larger workload.batch_per_gpu"
        steps = [lost.next if lost else first, *steps[-1:], f"lower {key} if this is good enough for you"]
        measured += f"; {lost.in_words}" if lost else ""
    if doubts:
        measured += f", uncertain: {'; '.join(why for why, _ in doubts)}"
    finding = judged(point, figure.name, measured, wanted, "; or ".join(filter(None, steps)), ok=reached)
    evidence = (lost.losses[0].evidence,) if lost and not reached and lost.losses[0].evidence else ()
    return finding.replace(uncertain=bool(doubts), evidence=evidence)


def doubts_of_efficiency(least: float, point: ScalePoint) -> str:
    """Return why it is not certain that the efficiency reaches, or misses, a minimum; empty if it is."""
    return "; ".join(why for why, _ in _doubts(least, _EFFICIENCY, point))


def _doubts(least: float, figure: _Minimum, point: ScalePoint) -> Iterator[tuple[str, str]]:
    """Yield why it is not certain that a figure reaches, or misses, a minimum, and what would make it so."""
    estimate = figure.column.of(point)
    if estimate is None:
        return
    log = estimate.log
    if log is not None and log.repeats is None:
        yield "this is an estimate from one repeat", "set repeats: 3, which keeps what is measured"
    elif log is not None:
        low, high = log.interval_of_any_job(estimate.value)
        more = f"set repeats: {min(MOST_REPEATS, 2 * point.repeats)}, which keeps what is measured"
        if low is None or high is None:
            yield "its interval is wider than a factor of 4", more
        elif low < least <= high:
            if point.statistic == SAMPLES_PER_TIME:
                more = "raise measure.max_steps, or train longer: slow steps recur"
            yield f"in other jobs it may be {figure.text(low)} to {figure.text(high)}", more
    yield from ((doubt_in_words(doubt), doubt.next) for doubt in estimate.doubts)


def _data_wait(point: ScalePoint, most: float) -> Finding:
    """Judge the data wait, which has no interval."""
    key, value = f"stages.{point.stage}.gate.max_data_wait_fraction", point["data_wait_fraction"]
    if value is None:
        measured, advice = "it was not measured", f"remove {key}: only what the instrument sees has a data wait"
    else:
        measured = f"{100 * value:.1f} % of the step time"
        advice = "" if value <= most else f"{point.against_waits}, or raise {key}"
    measured = f"data wait: {measured}"
    return judged(point, "data wait", measured, f"at most {100 * most:.1f} % ({key})", advice, ok=not advice)


def _above(most: float, point: ScalePoint, baseline: ScalePoint | None, results: Path) -> Iterator[Finding]:
    """Yield a failed finding if the efficiency is above ``most`` in any job: the baseline was measured too slow."""
    efficiency = point.of("efficiency")
    if baseline is None or efficiency is None or efficiency.log is None:
        return
    low, _ = efficiency.log.of_estimate.interval_of_any_job(efficiency.value)
    if low is None or low <= most:
        return
    runs = results / "runs" / point.variant / point.mode / point.baseline
    advice = (
        f"look for other load on the nodes of {point.baseline}, delete {runs} and start snakemake again: the baseline "
        "is measured again, and all gates are judged again"
    )
    if (baseline["data_wait_fraction"] or 0) - (point["data_wait_fraction"] or 0) > NOTABLE_WAIT:
        advice = f"{baseline.against_waits}, so that {point.baseline} does not wait for data; or {advice}"
    key = f"stages.{point.stage}.gate.max_efficiency"
    advice += f"; or raise {key} if you know why the larger scale does better"
    measured = f"{_EFFICIENCY.measured(point)}: more than the ideal"
    wanted = f"an interval that reaches down to {most:g} ({key})"
    yield judged(point, "baseline", measured, wanted, advice).replace(uncertain=efficiency.log.repeats is None)


def _to_be_comparable(plan: Plan, point: ScalePoint) -> str:
    """Return what to do when there is no efficiency."""
    if not point.differing:
        return "make the runs comparable: see the note of this scale in the report"
    steps = [item.next for item in MUST_MATCH if item.next and item.name in point.differing]
    steps.append(f"make the runs comparable: give all scales and repeats the same {', '.join(point.differing)}")
    if set(point.differing) <= set(MAY_DIFFER):
        names = ", ".join((*plan.may_differ, *point.differing))
        steps.append(f"where the difference is meant, write `fingerprint: {{may_differ: [{names}]}}` in config.yaml")
    return "; or ".join(steps)


# --- The judgement of a stage.


SCHEMA_VERSION = 2


def judge(plan: Plan, stage: str, results: Path, runs: RunRecords | None = None) -> Verdict:
    """Judge a stage of the plan on the records of its runs under ``results``. Reads only.

    runs: the records of ``results``, if they have been read already. Raises UserError if the plan has no such stage.
    """
    runs = runs or RunRecords(results)
    if stage not in plan.stages:
        where = str(results / "plan.json")
        raise UserError(Problem(where, f"there is no {stage}", allowed=", ".join(plan.stages)))
    plan, upto = as_made(plan, runs), plan.stages[: plan.stages.index(stage) + 1]
    specs = [spec for spec in plan.runs if spec.stage in upto]
    records: dict[str, Record] = {}
    findings: list[Finding] = []
    missing: list[Finding] = []
    failures: dict[Finding, Failure] = {}  # what is behind findings
    left_out: list[RunSpec] = []  # of this stage, by a preflight
    for spec in specs:
        directory = runs.directory(spec)
        if not (directory.record.exists() or directory.run.exists() or read_job_end(results, str(spec.scale))):
            again = f"run snakemake {spec.stage}"
            missing += [] if spec.is_plain else [judged(spec, "record", "not run yet", "a record", again)]
            continue
        record, failure, finding = _sanity(spec, runs, records)
        if failure is not None:
            failures[finding] = failure
        if record is not None and (finding.ok or spec.is_plain):
            records[spec.name] = record
        if record and record.failure and record.failure.kind == "preflight failed" and spec.stage == stage:
            left_out.append(spec)
        # The plain baseline is not judged; its row in the table shows how it ended. Earlier stages have been judged
        # already: only their failures are listed here.
        if not spec.is_plain and (spec.stage == stage or not finding.ok):
            findings.append(finding)
        if not spec.is_plain and spec.stage == stage and record is not None:
            findings += [each.replace(place=spec.name, wanted="nothing (a remark)") for each in record.remarks]
    of_preflights = dict(_preflight_failures(left_out, results))
    failures |= of_preflights
    findings = [*of_preflights, *findings, *missing]
    findings += _replaced_nodes([spec for spec in specs if spec.stage == stage], results)
    points = scale_points(specs, records, plan.may_differ, plan.gates)
    for point in points:
        if point.stage == stage and not point.is_plain:
            findings += performance(plan, point, points, results, measured_preflight(results, point.scale))
    by_variant = grouped((Place.of(finding).variant, finding.ok) for finding in findings)
    variants: dict[str, Word] = {name: "open" if all(ok) else "closed" for name, ok in by_variant.items()}
    reason = deciding(finding for finding in findings if Place.of(finding).variant == REFERENCE_VARIANT)
    return Verdict(
        schema_version=SCHEMA_VERSION,
        stage=stage,
        verdict=variants[REFERENCE_VARIANT],
        why=reason.in_words if reason else None,
        wanted=reason.wanted if reason else None,
        next=reason.next if reason else None,
        failure=failures.get(reason) if reason else None,
        variants=variants,
        judged=tuple(findings),
        points=points,
        records=_digests(runs, specs),
    )


def _digests(runs: RunRecords, specs: Sequence[RunSpec]) -> dict[str, str]:
    digests = {}
    for file in (runs.directory(spec).record for spec in specs):
        with suppress(OSError):  # there is none, or its finding says why it is not read
            digests[file.relative_to(runs.results).as_posix()] = sha256(read_bytes(file))
    return digests


def _trained(record: Record, others: Mapping[str, Record]) -> str:
    """Return which other run made steps with the same script, if this one ended well without any; else nothing."""
    script = record.fingerprint.script_sha256
    if record.failure is None or record.failure.kind != "too few steps" or any(rank.steps for rank in record.ranks):
        return ""
    alike = ((name, other) for name, other in others.items() if script and other.fingerprint.script_sha256 == script)
    made = ((name, rank.steps) for name, other in alike for rank in other.ranks if rank.steps)
    return next((f"{name} made {count(steps, 'step')} with the same script" for name, steps in made), "")


def _sanity(
    spec: RunSpec, runs: RunRecords, others: Mapping[str, Record]
) -> tuple[Record | None, Failure | None, Finding]:
    """Return the record of a run, its failure, and what is to be said of it. others: the good runs before it."""
    file = runs.directory(spec).record
    again = "start snakemake again: the record is assembled again, or the run is repeated"
    try:
        if not file.exists() and (end := read_job_end(runs.results, str(spec.scale))):
            wanted = "a job that leaves a record of every run"
            return None, None, judged(spec, "job", end.evidence, wanted, end.next)
        record = runs.believed(spec)
    except (OSError, ValueError) as error:
        wanted = "the record that the planned run itself left, with its raw files"
        return None, None, judged(spec, "record", str(error), wanted, again)
    failure = record.failure
    if failure is None:
        passed = sum(check.severity == "note" for check in record.checks)
        unknown = [check.kind for check in record.checks if check.severity == "unknown"]
        measured = f"{passed} checks passed" + (f", not checkable: {', '.join(unknown)}" if unknown else "")
        return record, None, judged(spec, "sanity", measured, "all checks", ok=True)
    why = failure.why
    for check in record.checks:  # the box shows what was wanted on a line of its own
        why = why.replace(f", wanted {check.wanted}", "")
    failure = failure.replace(why=why)
    if other := _trained(record, others):
        failure = failure.replace(why=f"{why}; {other}", next=OWN_DIRECTORY_ADVICE)
    finding = judged(spec, "run", failure.in_words, _wanted(record, failure.verdict), failure.next)
    return record, failure, finding.replace(evidence=failure.quoted)


def _wanted(record: Record, verdict: str) -> str:
    """Return what the failed check of a run asked for."""
    asked: dict[str, str] = {check.kind: check.wanted for check in record.checks if not check.ok}
    if verdict in asked:
        return asked[verdict]
    if not asked or "exit codes" in asked:
        return "a training that ends by itself, with exit code 0 on every rank and node"
    no_steps = "enough steps" in asked and not any(rank.steps for rank in record.ranks)
    name = "enough steps" if no_steps else next(iter(asked))
    return f"{name}: {asked[name]}"


def _preflight_failures(left_out: Sequence[RunSpec], results: Path) -> Iterator[tuple[Finding, Failure]]:
    """Yield a finding and its failure for each scale that had runs left out because its preflight failed.

    A preflight counts only for the runs that it left out: those that were made are judged by their own records, also if
    a later preflight of their scale failed, or was switched off, or if its files were deleted. Without its file, the
    runs' own records say why they were left out.
    """
    for spec in {spec.scale: spec for spec in reversed(left_out)}.values():
        if (result := measured_preflight(results, spec.scale)) and (found := result.failure):
            node = found.place or str(spec.scale)
            failure = Failure(verdict=PREFLIGHT_FAILED, why=found.in_words, node=node, next=found.next)
            finding = judged(spec, "preflight", failure.in_words, found.wanted, failure.next)
            yield finding.replace(place=f"{REFERENCE_VARIANT}/{spec.mode}/{spec.scale}"), failure


def _replaced_nodes(specs: Sequence[RunSpec], results: Path) -> Iterator[Finding]:
    """Yield a note for each node that a job of these runs was submitted again without."""
    first = {str(spec.scale): spec for spec in reversed(specs) if spec.variant == REFERENCE_VARIANT}
    for bad in bad_nodes(results):
        if spec := first.get(bad.scale):
            wanted, support = "nodes that pass the preflight", SUPPORT.format(file=bad_nodes_file(results))
            finding = judged(spec, "replaced node", bad.in_words, wanted, support, ok=True)
            yield finding.replace(place=Place.of(finding).of_scale)


def write_verdict(verdict: Verdict, gates: Path) -> Path:
    """Write the file of the open or of the closed gate; exactly one of the two exists afterwards."""
    opened, closed = gate_files(gates, verdict.stage)
    path, other = (opened, closed) if verdict.is_open else (closed, opened)
    with writing(other):
        other.unlink(missing_ok=True)
    write_json(path, verdict.model_dump())
    return path


def require_open_gate(plan: Plan, stage: str, results: Path) -> Verdict:
    """Return the gate that the next stage relies on: its file exists, and its records still open it.

    Raises UserError otherwise.
    """
    verdict, opened = judge(plan, stage, results), gate_files(results / "gates", stage)[0]
    if not verdict.is_open:
        closed = f"the gate of {stage} is closed"
        raise UserError(Problem(str(opened), closed, verdict.why, verdict.wanted, verdict.next))
    if not opened.exists():
        again = "start snakemake again: the gate is judged again"
        raise UserError(Problem(str(opened), "there is no evidence of an open gate", next=again))
    return verdict
