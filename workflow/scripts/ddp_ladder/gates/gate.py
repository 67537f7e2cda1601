"""The gate: the judgement of a stage on its records. Sanity first (did it work), then performance (how well).

Every user of a gate judges it again: a gate file is evidence only while its records give the same verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddp_ladder.common.files import read_json, sha256, write_json, writing
from ddp_ladder.common.formats import count
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.gates.attribution import measured_link
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.repeats import next_repeat, not_known
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.gates.verdict import SANITY, Finding, Verdict, Word, gate_files, performance, preflight_findings
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob
from ddp_ladder.records.checks import IN_WORDS, STRONGEST
from ddp_ladder.records.record import Record
from ddp_ladder.records.run_records import RunRecords, as_made, placeless
from ddp_ladder.settings.terms import REFERENCE_VARIANT
from ddp_ladder.slurm.job_end import read_job_end

SCHEMA_VERSION = 1
JUDGE_AGAIN = "start snakemake again: the gate is judged again"


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
    waiting: list[RunSpec] = []
    for spec in specs:
        if _is_not_run(spec, runs):
            waiting += [] if spec.is_plain else [spec]
            continue
        record, finding = _sanity(spec, runs)
        if record is not None and (finding.ok or spec.is_plain):
            records[spec.name] = record
        if spec.is_plain:
            continue  # it is not judged; its row in the table shows how it ended
        # Earlier stages have been judged already: only their failures are listed here.
        if spec.stage == stage or not finding.ok:
            findings.append(finding)
        if spec.stage == stage and record is not None:
            findings += _remarks(spec, record)
    findings += _not_run_yet(specs, waiting)
    findings[:0] = preflight_findings(plan, stage, runs)
    findings += _weaker_evidence(stage, specs, records)
    points = scale_points(specs, records, plan.may_differ, plan.gates)
    here = [point for point in points if point.stage == stage and not point.is_plain]
    links = {scale: measured_link(results, scale) for scale in dict.fromkeys(point.scale for point in here)}
    for point in here:
        findings += performance(plan, point, points, results, links[point.scale])
    findings += [finding for job in plan.stage_jobs(stage) for finding in _not_known(plan, job, records)]
    findings += [found for point in here if (found := _fewer_jobs(plan, point, records))]
    variants = _variants(findings)
    reason = next((finding for finding in findings if finding.variant == REFERENCE_VARIANT and not finding.ok), None)
    return Verdict(
        schema_version=SCHEMA_VERSION,
        stage=stage,
        verdict=variants[REFERENCE_VARIANT],
        why=f"{reason.where}: {reason.in_words}" if reason else None,
        wanted=reason.wanted if reason else None,
        next=reason.next if reason else None,
        variants=variants,
        judged=tuple(findings),
        points=points,
        records=_digests(runs, specs),
    )


def _variants(findings: list[Finding]) -> dict[str, Word]:
    names = dict.fromkeys(finding.variant for finding in findings)
    return {name: "open" if all(f.ok for f in findings if f.variant == name) else "closed" for name in names}


def _digests(runs: RunRecords, specs: list[RunSpec]) -> dict[str, str]:
    files = [runs.directory(spec).record for spec in specs]
    return {file.relative_to(runs.results).as_posix(): sha256(file.read_bytes()) for file in files if file.is_file()}


def _sanity(spec: RunSpec, runs: RunRecords) -> tuple[Record | None, Finding]:
    file = runs.directory(spec).record

    again = "start snakemake again: the record is assembled again, or the run is repeated"
    if file.is_dir():
        again = f"remove the directory {file}, and {again}"
    try:
        if not file.exists() and (end := read_job_end(runs.results, str(spec.scale))):
            wanted = "a job that leaves a record of every run"
            return None, Finding(*_place(spec), "job", False, end.evidence, wanted, end.next)
        record = runs.believed(spec)
    except (OSError, ValueError) as error:
        wanted = "the record that the planned run itself left, with its raw files"
        return None, Finding(*_place(spec), "record", False, str(error), wanted, again)
    if record.failure is not None:
        failure = record.failure
        # The box shows what was wanted on a line of its own.
        why = failure.why
        for check in record.checks:
            why = why.replace(f", wanted {check.wanted}", "")
        wanted = _wanted(record, failure.verdict)
        found = Finding(*_place(spec), failure.verdict, False, why, wanted, failure.next)
        return record, replace(found, place=failure.place, at_s=failure.at_s, evidence=failure.evidence)
    return record, Finding(*_place(spec), SANITY, True, f"{len(record.checks)} checks passed", "all checks", "")


def _is_not_run(spec: RunSpec, runs: RunRecords) -> bool:
    """Return True if nothing shows that a run was ever started: neither its files nor the end of its job."""
    directory = runs.directory(spec)
    return not (directory.record.exists() or directory.run.exists() or read_job_end(runs.results, str(spec.scale)))


def _not_run_yet(specs: Sequence[RunSpec], waiting: Sequence[RunSpec]) -> Iterator[Finding]:
    """Yield a finding for each of the runs that wait, with the number of those of its scale, variant and mode."""
    due, planned = (Counter(_place(spec)[:3] for spec in each) for each in (waiting, specs))
    for spec in waiting:
        place = _place(spec)
        measured = f"{due[place[:3]]} of {count(planned[place[:3]], 'repeat')} not run yet"
        yield Finding(*place, "record", False, measured, "a record of each", f"run snakemake {spec.stage}")


def _not_known(plan: Plan, job: ScaleJob, records: Mapping[str, Record]) -> Iterator[Finding]:
    """Yield a remark for each variant that more repeats, which the settings allow, would make known well enough."""
    for one in not_known(plan, job, records) if job.is_adaptive else ():
        measured = f"{one.repeats} of at most {job.jobs * job.at_most} repeats: {one.known}"
        goes_on = f"start snakemake again; if no time is left for a repeat, raise stages.{job.stage}.runtime"
        next_step = goes_on if next_repeat(plan, job, records) else "raise repeats.at_most"
        place = (one.variant, one.mode, str(job.scale))
        yield Finding(*place, None, "repeats", True, measured, f"known to {job.until_percent:g} %", next_step)


def _fewer_jobs(plan: Plan, point: ScalePoint, records: Mapping[str, Record]) -> Finding | None:
    """Return a remark if fewer jobs than planned measured a scale."""
    job = plan.job(point.scale)
    if not 0 < point.jobs < job.jobs:
        return None
    more = next_repeat(plan, job, records)
    next_step = "start snakemake again, on Slurm" if more else f"set jobs: {job.jobs + 1}: another job then measures it"
    place = (point.variant, point.mode, str(point.scale), None)
    return Finding(*place, "jobs", True, f"{point.jobs} of {job.jobs} jobs", f"{job.jobs} jobs (jobs)", next_step)


def _place(spec: RunSpec) -> tuple[str, str, str, int]:
    return spec.variant, spec.mode, str(spec.scale), spec.repeat


def _wanted(record: Record, verdict: str) -> str:
    """Return what the failed check of a run asked for."""
    asked = {check.name: check.wanted for check in record.checks if not check.ok}
    if verdict in asked:
        return asked[verdict]
    if not asked or "exit codes" in asked:
        return "a training that ends by itself, with exit code 0 on every rank and node"
    no_steps = "enough steps" in asked and not any(rank.steps for rank in record.ranks)
    name = "enough steps" if no_steps else next(iter(asked))
    return f"{name}: {asked[name]}"


def _remarks(spec: RunSpec, record: Record) -> Iterator[Finding]:
    """Yield the remarks of a record; a remark does not close the gate."""
    for remark in record.remarks:
        yield Finding(*_place(spec), remark.name, True, remark.what, "nothing (a remark)", remark.next)


def _weaker_evidence(stage: str, specs: list[RunSpec], records: Mapping[str, Record]) -> Iterator[Finding]:
    """Yield one remark for each scale whose throughput was not counted; it does not close the gate."""
    named = set()
    for spec in specs:
        record = records.get(spec.name)
        source = record.throughput.source if record is not None and record.throughput else STRONGEST
        place = (spec.variant, spec.mode, str(spec.scale))
        if spec.stage == stage and not spec.is_plain and source != STRONGEST and place not in named:
            named.add(place)
            measured = f"weaker: {IN_WORDS[source]}"
            yield Finding(*place, None, "evidence", True, measured, IN_WORDS[STRONGEST], "")


def write_verdict(verdict: Verdict, gates: Path) -> Path:
    """Write the file of the open or of the closed gate; exactly one of the two exists afterwards.

    Raises UserError if a directory is in the place of either.
    """
    opened, closed = gate_files(gates, verdict.stage)
    for file in (opened, closed):
        if file.is_dir():
            problem = "a directory is in the place of a gate file"
            raise UserError(Problem(str(file), problem, next=f"remove it, and {JUDGE_AGAIN}"))
    path, other = (opened, closed) if verdict.is_open else (closed, opened)
    with writing(other):
        other.unlink(missing_ok=True)
    write_json(path, verdict.model_dump())
    return path


def require_open_gate(plan: Plan, stage: str, results: Path) -> Verdict:
    """Return the gate that the next stage relies on: its file exists, and its records still open it.

    Raises UserError otherwise.
    """
    verdict = judge(plan, stage, results)
    problem = gate_file_problem(verdict, results / "gates")
    opened = gate_files(results / "gates", stage)[0]
    if problem is None and not verdict.is_open:
        problem = Problem(str(opened), f"the gate of {stage} is closed", verdict.why, verdict.wanted, verdict.next)
    if problem is None and not opened.exists():
        problem = Problem(str(opened), "there is no evidence of an open gate", next=JUDGE_AGAIN)
    if problem is not None:
        raise UserError(problem)
    return verdict


def gate_file_problem(verdict: Verdict, gates: Path) -> Problem | None:
    """Return how the files of a gate contradict its present verdict; None if they agree or there are none."""
    opened, closed = gate_files(gates, verdict.stage)
    there = [file for file in (opened, closed) if file.exists() or file.is_symlink()]
    if len(there) == 2:
        return Problem(str(opened), f"{closed.name} is beside it: a gate is open or closed, not both", next=JUDGE_AGAIN)
    for file in there:
        if file.is_dir():
            return Problem(str(file), "this is a directory, not a gate file", next=f"remove it, and {JUDGE_AGAIN}")
        try:
            data = read_json(file)
            gate = Verdict.from_json(data)
            if gate.stage != verdict.stage:
                raise ValueError(f"stage {gate.stage}")
        except (OSError, ValueError) as error:
            found = f"not version {SCHEMA_VERSION} of the gate of {verdict.stage}: {error}"
            return Problem(str(file), "this is not a complete gate file", found, next=JUDGE_AGAIN)
        if gate.is_open != verdict.is_open or (file == opened) != gate.is_open:
            now = "open" if verdict.is_open else f"closed: {verdict.why}"
            return Problem(
                str(file),
                "this is not what the records give now",
                found=f"{gate.verdict} in the file; judged again, the gate is {now}",
                next=JUDGE_AGAIN,
            )
        if _judgement(data, gates.parent) != _judgement(verdict.model_dump(), gates.parent):
            problem = "this gate was judged by another version, on other records or thresholds, or edited"
            return Problem(str(file), problem, next=JUDGE_AGAIN)
    return None


def _judgement(data: Mapping[str, Any], results: Path) -> str:
    """Return the judgement in a gate file as text, without what nothing relies on: points and advice.

    A preflight that is repeated alone changes the advice, not the judgement.
    """
    kept = {key: value for key, value in data.items() if key not in ("points", "next")}
    kept["judged"] = [{k: v for k, v in each.items() if k not in ("next", "shown_by")} for each in data["judged"]]
    return placeless(kept, results)
