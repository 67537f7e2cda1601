"""The results of a ladder so far, and what the report shows of them, computed once for page, Markdown and proposal.

A report is needed most after a failure, so a file that cannot be used becomes a warning in it: nothing raises on one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from ddp_ladder.analysis.decisions import Decision, Work, decide, reference_series, with_cost, with_flops, with_tokens
from ddp_ladder.analysis.prediction import Prediction, outlooks
from ddp_ladder.assembly.run_records import RunRecords, as_made
from ddp_ladder.common.findings import Finding
from ddp_ladder.common.formats import UNKNOWN, capitalised, count, full_stop, grouped, in_short, stage_name
from ddp_ladder.common.messages import printable
from ddp_ladder.gates.figures import (
    AGAINST_PLAIN,
    EFFICIENCY,
    OF_CENTRE,
    SAMPLES_PER_S,
    SPEEDUP,
    TFLOP_PER_S,
    TOKENS_PER_S,
    TOKENS_PER_S_PER_GPU,
    shares_of_rates,
)
from ddp_ladder.gates.gate import Place, Verdict, gate_files, judge
from ddp_ladder.gates.interval import doubt_in_words
from ddp_ladder.gates.points import WITNESSED, ScalePoint, other_processes
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.ledger.jobs import JobRow
from ddp_ladder.measuring import fingerprint
from ddp_ladder.nodes.sampler import NodeDescription, read_machines
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.plan.short_runs import Fit, fit_of
from ddp_ladder.preflight.result import BadNode, PreflightResult, bad_nodes, by_scale
from ddp_ladder.records.record import SAMPLES_PER_TIME, Failure, Fingerprint, Record
from ddp_ladder.report.comparison import Comparison, compare_variants
from ddp_ladder.settings.terms import REFERENCE_VARIANT

REPEATED = "start snakemake again: the record is assembled again, or the run is repeated"


@dataclass(frozen=True)
class LadderResults:
    """The plan, records and gates of a report."""

    plan: Plan
    records: Mapping[str, Record]  # by RunSpec.name
    gates: Mapping[str, Verdict]  # by stage
    warnings: tuple[str, ...]
    unread: int = 0  # records that exist but cannot be read or believed
    preflights: Mapping[str, PreflightResult] = field(default_factory=dict)  # by scale
    machines: Mapping[str, Sequence[NodeDescription]] = field(default_factory=dict)  # the nodes of each scale
    jobs: tuple[JobRow, ...] = ()  # of results/accounting.csv
    work: Work = field(default_factory=Work)  # the training whose cost is shown
    begun: int = 0  # runs with files of a start, and without a record
    directory: Path = Path("results")
    fit: Fit | None = None  # the search that chose the batch
    bad_nodes: tuple[BadNode, ...] = ()

    @cached_property
    def points(self) -> tuple[ScalePoint, ...]:
        points = scale_points(self.plan.runs, self.records, self.plan.may_differ, self.plan.gates)
        points = tuple(with_tokens(point, self.plan.units.tokens_per_sample) for point in points)
        return with_flops(points, {scale: result.matrix_tflop_per_s for scale, result in self.preflights.items()})

    @property
    def counts(self) -> str:
        """Return ``12 runs are planned: 9 ok, 2 failed, 1 not run``: each planned run is counted once."""
        planned, records = len(self.plan.runs), self.records.values()
        ok = sum(record.status == "ok" for record in records)
        skipped = sum(record.job is None and record.status != "ok" for record in records)
        known = {
            "ok": ok,
            "failed": len(records) - ok - skipped,
            "not started on purpose": skipped,
            "left out, without a usable record": self.unread,
            "begun, without a record": self.begun,
            "not run": planned - len(records) - self.unread - self.begun,
        }
        parts = ", ".join(f"{number:,} {name}" for name, number in known.items() if number)
        return f"{count(planned, 'run')} {'is' if planned == 1 else 'are'} planned{': ' if parts else ''}{parts}"


def read_results(results: Path, plan: Plan, warning: str = "", runs: RunRecords | None = None) -> LadderResults:
    """Read the records that belong to ``plan``, and judge again the gates that have been judged.

    warning: a further warning, which comes first.
    """
    runs = runs or RunRecords(results)
    plan = as_made(plan, runs)
    believed = believed_records(runs, plan.runs)
    planned = {str(job.scale): job for job in plan.jobs}
    preflights, preflight_warnings = by_scale(results, planned)
    judged = [stage for stage in plan.stages if any(file.exists() for file in gate_files(results / "gates", stage))]
    good = [record for record in believed.records.values() if record.status == "ok"]
    return LadderResults(
        plan,
        believed.records,
        {stage: judge(plan, stage, results, runs) for stage in judged},
        (*filter(None, [warning]), *believed.warnings, *preflight_warnings, *_other_tokens(plan, good)),
        believed.unread,
        preflights,
        {scale: nodes for scale, nodes in read_machines(results).items() if scale in planned},
        work=Work.seen_in(good, plan.units.tokens_per_sample),
        begun=believed.begun,
        directory=results,
        fit=fit_of(plan, results),
        bad_nodes=bad_nodes(results),
    )


# --- Records.


@dataclass(frozen=True)
class Believed:
    """The usable records, and the others in words."""

    records: dict[str, Record]  # by RunSpec.name
    warnings: tuple[str, ...]
    unread: int  # records that exist but cannot be used
    begun: int  # runs that have files but no record


def believed_records(runs: RunRecords, planned: Sequence[RunSpec]) -> Believed:
    """Read the records of all planned runs."""
    records: dict[str, Record] = {}
    unread: list[tuple[str, str]] = []  # what is wrong, and the path
    begun: list[str] = []
    for spec in planned:
        directory = runs.directory(spec)
        try:
            records[spec.name] = runs.believed(spec)
        except FileNotFoundError:
            if kept := runs.kept(spec):
                records[spec.name] = kept  # Snakemake deletes the records of a job that fails in the end
            elif any(path.exists() for path in (directory.run, directory.ended, directory.ranks, directory.nodes)):
                begun.append(spec.name)
            # Otherwise it has not been run yet, as its row in the table shows.
        except (OSError, ValueError) as error:
            why = f"the record cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)
            path = str(directory.record)
            unread.append((why.removeprefix(path).removeprefix(":").strip(), path))
    # Those alike in one line: a page cannot hold thousands.
    warnings = [f"{in_short(paths)}: {why}; left out. Next: {REPEATED}" for why, paths in grouped(unread).items()]
    if begun:
        again = "if nothing is running, start snakemake again, which repeats what was begun"
        warnings.append(f"{count(len(begun), 'run')} begun, without a record: {in_short(begun)}. Next: {again}")
    return Believed(
        records,
        (*runs.changes_of_rules(), *warnings, *_unplanned_records(runs.results / "runs", planned)),
        len(unread),
        len(begun),
    )


def _other_tokens(plan: Plan, records: Iterable[Record]) -> Iterator[str]:
    """Yield a warning if samples had other lengths than the settings say; without padding, they may be shorter."""
    said = plan.units.tokens_per_sample
    seen = sorted({tokens for record in records if (tokens := record.fingerprint.tokens_per_sample)})
    if said is not None and seen not in ([], [said]):
        lengths = " or ".join(map(str, seen))
        yield f"tokens/s are of workload.tokens_per_sample ({said}); input_ids had {lengths} tokens, padding included"


def _unplanned_records(runs: Path, planned: Iterable[RunSpec]) -> Iterator[str]:
    names = (printable(path.parent.relative_to(runs).as_posix()) for path in runs.glob("*/*/*/r*/record.json"))
    if unplanned := sorted({*names} - {spec.name for spec in planned}):
        yield f"{len(unplanned)} record(s) of runs that the plan does not have are left out: {in_short(unplanned)}"


# --- What is shown.


INTERVALS = (
    "95 % intervals over repeats, of one job on its nodes or, where several jobs measured a scale, of any job; one "
    "repeat has none, nor have repeats that differ by too much"
)
MOST_VALUES = 12  # hosts: more are in the runs' records
MOST_NAMED = 12  # scales of one note; scaling.csv has the notes of each
OF_A_RUN = (("train.log", "log"), ("record.json", "record"), ("job.sh", "job"))
SHOWN_WHEN_ABSENT = ("autocast_dtype", "optimizer")  # "none" is informative for these fields only


Kind = Literal["reached", "doubtful", "stopped", "failed", "empty"]


@dataclass(frozen=True)
class Headline:
    """The headline of a report."""

    kind: Kind
    text: str  # one or two sentences
    next: str | None = None  # what to do; None if there is nothing to do
    evidence: tuple[str, ...] = ()  # the figures that show why it stopped


@dataclass(frozen=True)
class FailureGroup:
    """One failure, with all runs that ended in it."""

    failure: Failure  # its place, time and lines are those of the first run
    runs: tuple[str, ...]  # their names


@dataclass(frozen=True)
class ReportView:
    """Everything that the page and the Markdown show."""

    results: LadderResults
    written_on: date

    @property
    def title(self) -> str:
        """Return ``Scaling of mnist.py on local``."""
        return f"Scaling of {self.script} on {self.plan.site}"

    @property
    def script(self) -> str:
        """Return ``mnist.py``."""
        return " and ".join(dict.fromkeys(run.script.rsplit("/", 1)[-1] for run in self.plan.runs)) or "nothing"

    @cached_property
    def points(self) -> tuple[ScalePoint, ...]:
        """Return the figures of all scales, with the cost of the whole training."""
        return with_cost(self.results.points, self.results.work, self.plan.units)

    @cached_property
    def rungs(self) -> tuple[ScalePoint, ...]:
        """Return the points without the plain baseline."""
        return tuple(point for point in self.points if not point.is_plain)

    @cached_property
    def runs(self) -> tuple[Record, ...]:
        """Return the records in the order of the tables: mode, variant, scale, repeat."""
        order = {(point.mode, point.variant, point.scale): index for index, point in enumerate(self.points)}
        placed = (
            (order[run.spec.mode, run.spec.variant, run.spec.scale], run) for run in self.results.records.values()
        )
        return tuple(run for _, run in sorted(placed, key=lambda pair: (pair[0], pair[1].spec.repeat)))

    @cached_property
    def headline(self) -> Headline:
        return headline(self.results)

    @cached_property
    def tables(self) -> dict[str, list[ScalePoint]]:
        """Return the points of each mode and variant by their title; the plain baseline is first, of the reference."""
        series = grouped(((point.mode, point.variant), point) for point in self.rungs)
        several, tables = len({variant for _, variant in series}) > 1, {}
        for (mode, variant), own in series.items():
            plain = [p for p in self.points if p.is_plain and p.mode == mode and variant == REFERENCE_VARIANT]
            tables[capitalised(f"{mode} scaling") + f", variant {variant}" * several] = plain + own
        return tables

    @cached_property
    def comparison(self) -> Comparison | None:
        """Return the comparison of the variants; None if the plan has only one, or nothing has been measured."""
        several = len({point.variant for point in self.rungs}) > 1 and self.anything_measured
        return compare_variants(self.plan, self.results.records) if several else None

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        return decide(self.rungs, self.thresholds)

    @property
    def proposed(self) -> list[ScalePoint]:
        """Return the points that the proposal shows, mode by mode."""
        return [point for decision in self.decisions for point in decision.points]

    @cached_property
    def proposed_on(self) -> Mapping[str, str]:
        """Return what the runs of the proposal were measured on, by the name of the field."""
        return {name: words for name, _, words in measured_on(self.good_runs(*self.proposed), self.plan.may_differ)}

    def good_runs(self, *points: ScalePoint) -> list[Record]:
        wanted = {(point.mode, point.variant, point.scale) for point in points}
        good = [run for run in self.runs if run.status == "ok"]
        return [run for run in good if (run.spec.mode, run.spec.variant, run.spec.scale) in wanted]

    @cached_property
    def outlooks(self) -> tuple[Prediction, ...]:
        return outlooks(self.plan, self.points)

    @cached_property
    def failures(self) -> tuple[FailureGroup, ...]:
        """Return the failures with their runs; runs left out on purpose are not among them (see their scale's note)."""
        failed = [(run.failure, run) for run in self.runs if run.failure and run.job and not run.spec.is_plain]
        alike = grouped(((each.verdict, each.why, each.next), (each, run.spec.name)) for each, run in failed)
        return tuple(FailureGroup(own[0][0], tuple(name for _, name in own)) for own in alike.values())

    @cached_property
    def measured(self) -> tuple[tuple[str, str, str], ...]:
        """Return field, mark (=: must match) and the values with the scales that have them."""
        return measured_on(self.runs, self.plan.may_differ)

    @cached_property
    def machine(self) -> str:
        """Return a sentence on hardware and versions; empty while nothing has been measured."""
        seen = [run for run in self.runs if run.fingerprint != Fingerprint()]
        hosts = {host for run in seen for host in run.world.hosts}

        def of(key: str) -> str:
            values = dict.fromkeys(str(value) for run in seen if (value := getattr(run.fingerprint, key)))
            return " / ".join(values)

        hardware = of("gpu") or of("cpu_model") or "an unnamed processor"
        versions = [("PyTorch", "torch"), ("CUDA", "cuda"), ("NCCL", "nccl"), ("Python", "python")]
        software = ", ".join(f"{label} {of(key)}" for label, key in versions if of(key))
        precision = of("autocast_dtype") or of("parameter_dtype")
        text = f"Measured on {count(len(hosts), 'host')} with {hardware}, {software}"
        return f"{text}{f'; precision {precision}' if precision else ''}." if seen else ""

    @property
    def machine_rows(self) -> tuple[tuple[str, str], ...]:
        """Return a line for each kind of node: where there are such nodes, and what they are."""
        machines = ((scale, machine) for scale, own in self.results.machines.items() for machine in own)
        nodes_of = grouped(((machine.in_words, scale), machine.node) for scale, machine in machines)
        where = grouped((words, f"{scale}: {in_short(nodes)}") for (words, scale), nodes in nodes_of.items())
        return tuple(("; ".join(places), words) for words, places in where.items())

    def links_of(self, run: Record) -> tuple[tuple[str, str], ...]:
        """Return address and words of the links to a run's log, record and job script, as far as they exist."""
        files = ((f"runs/{run.spec.name}/{file}", words) for file, words in OF_A_RUN)
        return tuple((f"../{quote(file)}", words) for file, words in files if (self.results.directory / file).is_file())

    @property
    def not_counted(self) -> tuple[str, ...]:
        """Return the reasons why FLOPs were not counted."""
        return tuple(dict.fromkeys(point.flops_not_counted for point in self.rungs if point.flops_not_counted))

    @property
    def plan(self) -> Plan:
        return self.results.plan

    @property
    def unit(self) -> str:
        """Return ``GPU``, or ``process`` for a ladder without."""
        return self.plan.hour_unit.device

    @property
    def units(self) -> str:
        return self.plan.hour_unit.devices

    def of_device(self, heading: str) -> str:
        """Return a heading in the words of this site: ``process`` if it has no GPU, and the name of its hours."""
        of_device, hours = self.plan.hour_unit.of_device(heading), self.plan.units.hours
        return of_device.replace(OF_CENTRE, hours.name) if hours else of_device

    def place(self, point: ScalePoint) -> str:
        return point.place(self.several_series)

    @property
    def thresholds(self) -> dict[str, float | None]:
        """Return the efficiency that each stage's gate asks for, a fraction."""
        return {stage: gate.min_efficiency for stage, gate in self.plan.gates.items()}

    @property
    def several_series(self) -> bool:
        """Return True if a scale alone does not identify a point."""
        return len(self.tables) > 1

    @property
    def anything_measured(self) -> bool:
        return any(point["samples_per_s"] is not None for point in self.points)


# What was measured on


def measured_on(runs: Sequence[Record], may_differ: Collection[str]) -> tuple[tuple[str, str, str], ...]:
    """Return the fingerprint fields, first those that must match; fields that no run has are left out."""
    seen = [run for run in runs if run.fingerprint != Fingerprint()]
    rows = [(item.name, _mark(item, may_differ), item.value) for item in fingerprint.MUST_MATCH]
    rows += [
        ("batch", "=", _batch),
        ("backend", "", lambda run: run.world.backend),
        ("launcher", "", lambda run: run.spec.launcher),
        ("global batch", "", lambda run: run.fingerprint.global_batch),
        ("gradient bytes", "", lambda run: run.fingerprint.gradient_bytes),
        ("buckets", "", lambda run: run.fingerprint.bucket_bytes),
        ("comm hook", "", lambda run: run.fingerprint.comm_hook),
        ("repository", "", _repository),
        ("cpus", "", lambda run: run.fingerprint.cpus),
        ("cpu sets", "", lambda run: run.fingerprint.cpu_sets),
        ("env", "", lambda run: [f"{key}={value}" for key, value in run.spec.env_template.items()]),
    ]
    several = len({(run.spec.mode, run.spec.variant) for run in seen}) > 1
    placed = [
        (run, f"{run.spec.scale} {run.spec.mode} {run.spec.variant}" if several else str(run.spec.scale))
        for run in seen
    ]
    table = [(name, mark, _values(name, value, placed)) for name, mark, value in rows if seen]
    hosts = sorted({host for run in seen for host in run.world.hosts})
    table += [("hosts", "", in_short(hosts, MOST_VALUES))] if hosts else []
    return tuple(row for row in table if row[2] != fingerprint.in_full(None) or row[0] in SHOWN_WHEN_ABSENT)


def _mark(item: fingerprint.MustMatch, may_differ: Collection[str]) -> str:
    """Return the mark of a field: = for equality; empty if it is compared in another way."""
    return "may differ" if item.name in may_differ else "" if item.same else "="


def _repository(run: Record) -> str | None:
    """Return the commit of the script's repository, marked if files differed from it."""
    commit, changes = run.fingerprint.git_commit, " with changes" if run.fingerprint.git_dirty else ""
    return f"{commit[: fingerprint.DIGEST_LENGTH]}{changes}" if commit else None


def _batch(run: Record) -> str:
    """Return the batch that must be equal in the run's mode."""
    is_per_gpu = fingerprint.BATCH[run.spec.mode].name == "batch_per_gpu"
    seen = fingerprint.batch_per_gpu_seen if is_per_gpu else fingerprint.global_batch_seen
    return f"{seen(run)} {'per GPU' if is_per_gpu else 'global'}"


def _values(name: str, value: Callable[[Record], Any], runs: Sequence[tuple[Record, str]]) -> str:
    """Return ``a``, or of several values ``a (1x1); b (1x2, 2x1)``: each with the places that have it."""

    def shown(run: Record) -> str:
        text = fingerprint.in_full(value(run))
        is_digest = name.endswith("sha256") and text != fingerprint.UNREAD
        return text[: fingerprint.DIGEST_LENGTH] if is_digest else text

    places_of = grouped((shown(run), place) for run, place in runs)
    if len(places_of) == 1:
        return next(iter(places_of))
    return "; ".join(f"{text} ({in_short([*dict.fromkeys(places)])})" for text, places in places_of.items())


def gate_rows(gate: Verdict, several_series: bool) -> list[tuple[Finding, str]]:
    """Return the findings to show with their places, ``1x4 weak gloo r1 r2``: repeats with the same one share a row.

    several_series: mode and variant are named too.
    """
    places = grouped((item.replace(place=(place := Place.of(item)).of_scale), place) for item in gate.worth_showing)
    rows = []
    for item, (first, *others) in places.items():
        name = (first.scale, first.mode, first.variant) if several_series else (first.scale,)
        numbers = [place.repeat for place in (first, *others) if place.repeat]
        rows.append((item, " ".join((*name, *numbers))))
    return rows


# --- The headline.


def headline(results: LadderResults) -> Headline:
    """Return how far the ladder got, or what stopped it and what to do."""
    points = [point for point in results.points if not point.is_plain]
    if closed := next((gate for gate in _in_order(results) if not gate.is_open), None):
        return _stopped(closed, points, results.plan.hour_unit.device)
    if shown := _furthest(points):
        return _reached(results, points, shown)
    failures = [run.failure for run in results.records.values() if run.failure and run.job and not run.spec.is_plain]
    if failures:
        text = f"Nothing could be measured: {count(len(failures), 'run')} failed."
        return Headline("failed", f"{text} {full_stop(capitalised(failures[0].why))}", failures[0].next)
    if results.unread:
        text = f"What was measured cannot be shown: {count(results.unread, 'record')} cannot be used."
        return Headline("failed", text, "see the warnings, which name each file and what is wrong with it")
    return Headline(
        "empty",
        "Nothing has been measured yet.",
        "run `snakemake --cores all` here, or `snakemake --profile profiles/slurm` on a cluster",
    )


def _in_order(results: LadderResults) -> list[Verdict]:
    return [results.gates[stage] for stage in results.plan.stages if stage in results.gates]


def _stopped(gate: Verdict, points: Sequence[ScalePoint], unit: str) -> Headline:
    reason = gate.reason or next(iter(gate.failing), None)  # of any variant if the default has none
    why = gate.why or "its file does not say why"
    if reason:
        place = Place.of(reason)
        mode = f" {place.mode}" if len({point.mode for point in points}) > 1 else ""
        why = f"{place.scale}{mode} {reason.measured}, wanted {reason.wanted}"
    text = f"Stopped at the gate of {_stage(gate.stage, points)}: {full_stop(why)}"
    evidence = reason.evidence if reason and not Place.of(reason).repeat else ()
    if before := [point for point in _furthest(points) if point.stage != gate.stage]:
        text += f" Before it, {_figures(before[0], unit)}."
    return Headline("stopped", text, gate.next or (reason and reason.next) or None, evidence)


def _furthest(points: Sequence[ScalePoint]) -> list[ScalePoint]:
    """Return the last measured point of each mode, of the reference variant or else of the first."""
    return [series[-1] for series in reference_series([p for p in points if p.status != "failed"])]


def _reached(results: LadderResults, points: Sequence[ScalePoint], shown: Sequence[ScalePoint]) -> Headline:
    stages, unit = results.plan.stages, results.plan.hour_unit.device
    stage = max((point.stage for point in shown), key=stages.index)
    last = [point for point in shown if point.stage == stage]  # of each mode
    judged = "reached" if stage in results.gates else "measured, its gate is not judged yet"
    text = f"{capitalised(_stage(stage, points))} {judged}"
    if len({point.mode for point in points}) > 1:
        text += "".join(f". {capitalised(point.mode)} scaling: {_figures(point, unit)}" for point in last) + "."
    else:
        text += f": {_figures(last[0], unit)}."
    ran = {point.stage for point in points if point.status != "not run"}
    if missing := [later for later in stages[stages.index(stage) + 1 :] if later not in ran]:
        text += f" {capitalised(stage_name(missing[0]))} has not been run."
    if failed := [f"{point.scale} ({point.variant})" for point in points if point.status == "failed"]:
        text += f" Runs failed at {', '.join(dict.fromkeys(failed))}."
    if disturbed := other_processes(*last):
        text += f" Not measured alone: {full_stop(disturbed.in_words)}"
    doubts = [item for gate in _in_order(results) for item in gate.uncertain(REFERENCE_VARIANT)]
    if doubts:
        text += f" Decided on the estimate alone: {Place.of(doubts[0]).scale} {full_stop(doubts[0].measured)}"
    figures = [figure for point in last for figure in (point.of("efficiency"), point.rate) if figure]
    told = {doubt_in_words(doubt): doubt.next for figure in figures for doubt in figure.doubts}
    in_doubt = {words: advice for words, advice in told.items() if words not in text}
    if in_doubt:
        text += f" In doubt: {full_stop('; '.join(in_doubt))}"
    steps = [disturbed.next] if disturbed else [*in_doubt.values()]
    is_unlike = any(point.status in ("check", "not comparable") for point in last)
    kind: Kind = "doubtful" if doubts or disturbed or in_doubt or is_unlike else "reached"
    return Headline(kind, text, steps[0] if steps else None)


def _stage(stage: str, points: Sequence[ScalePoint]) -> str:
    """Return ``stage 3``, with a note if its nodes were simulated."""
    simulated = [point.simulated for point in points if point.stage == stage and point.simulated]
    return stage_name(stage) + (f" ({simulated[-1]})" if simulated else "")


def _figures(point: ScalePoint, unit: str) -> str:
    rate = f"{point.scale} runs at {SAMPLES_PER_S.shown(point)} {SAMPLES_PER_S.heading}"
    remarks = ["samples / time"] * (point.statistic == SAMPLES_PER_TIME)
    if point.witness and point.rate:
        remarks.append(WITNESSED if point.rate.source == WITNESSED else f"not {WITNESSED}")
    rate += f" ({', '.join(remarks)})" * bool(remarks)
    tokens, flops = tokens_in_words(point, unit), ""
    if point["tflop_per_s_per_gpu"] is not None:
        does = f"; each {unit} does {TFLOP_PER_S.shown(point)} TFLOP/s ({point.flops_precision})"
        flops = ", ".join(filter(None, (does, shares_of_rates(point))))
    if point.is_baseline and point.status != "not comparable":
        return f"{rate} {SAMPLES_PER_S.interval(point)}".rstrip() + tokens + flops
    rate += tokens
    baseline = point.baseline_in_words.replace("GPU", unit)
    if point["efficiency"] is None:
        return f"{rate}; no efficiency against {baseline} can be given ({point.note})"
    rate_of = "the rate of " if baseline == point.baseline else ""
    efficiency = f"{EFFICIENCY.shown(point)} {EFFICIENCY.heading} {EFFICIENCY.interval(point)}".rstrip()
    text = f"{rate}, {SPEEDUP.shown(point)}x {rate_of}{baseline}, {efficiency}"
    if point["efficiency_plain"] is not None:
        text += f" ({AGAINST_PLAIN.shown(point)} against the script without DDP)"
    return (f"{text}, which is more than the ideal (see its note)" if point.status == "check" else text) + flops


def tokens_in_words(point: ScalePoint, unit: str) -> str:
    """Return ``, 13,300,000 tokens/s (1,660,000 per GPU)``; empty if the tokens of a sample are not known."""
    if point["tokens_per_s"] is None:
        return ""
    tokens = point.witness.tokens if point.witness else None
    real = f"; {tokens.in_words}" if tokens and tokens.in_words else ""
    rate = f"{TOKENS_PER_S.shown(point)} {TOKENS_PER_S.heading}"
    return f", {rate} ({TOKENS_PER_S_PER_GPU.shown(point)} per {unit}{real})"


def gate_words(gates: Mapping[str, Verdict], point: ScalePoint) -> str:
    """Return ``stage 2 open`` or ``stage 2 closed (uncertain)``; a dash while the gate is not judged."""
    if (gate := gates.get(point.stage)) is None:
        return UNKNOWN
    return f"{stage_name(point.stage)} {gate.verdict_of(point)}{' (uncertain)' * bool(gate.uncertain(point.variant))}"


# --- Series and notes.


def scale_notes(points: Sequence[ScalePoint], several_series: bool) -> tuple[tuple[str, str], ...]:
    """Return each note with the scales that have it: (``1x2 weak gloo, 1x4 weak gloo and 3 more``, the note)."""
    places = grouped((point.note, point) for point in points if point.note)
    return tuple((scale_names(where, several_series), note) for note, where in places.items())


def scale_names(points: Sequence[ScalePoint], several_series: bool) -> str:
    """Return the names of scales, of many the first ones. several_series: a scale alone does not identify a point."""
    return in_short([point.place(several_series) for point in points], MOST_NAMED)
