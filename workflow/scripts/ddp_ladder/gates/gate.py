"""The gate: the judgement of a stage on its records. Sanity first (did it work), then performance (how well).

Every user of a gate judges it again: a gate file says that a stage was judged, its records say how.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ddp_ladder.assembly.run_records import RunRecords, as_made
from ddp_ladder.common.files import read_bytes, sha256, write_json, writing
from ddp_ladder.common.findings import Finding, deciding
from ddp_ladder.common.formats import count, grouped
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.gates.attribution import measured_preflight
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.gates.verdict import Place, Verdict, Word, gate_files, judged, performance
from ddp_ladder.measuring.fingerprint import OWN_DIRECTORY_ADVICE
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.preflight.result import PREFLIGHT_FAILED, SUPPORT, bad_nodes, bad_nodes_file
from ddp_ladder.records.record import Failure, Record
from ddp_ladder.settings.terms import REFERENCE_VARIANT
from ddp_ladder.slurm.jobs import read_job_end

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
