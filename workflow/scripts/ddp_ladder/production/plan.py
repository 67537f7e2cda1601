"""The plan of a chain: its scale, which has to be proven, its script's arguments, and what it can cost.

Beside it what was planned before: the milestones of the application, kept for the final report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count as from_one
from pathlib import Path
from shlex import join, quote

from pydantic import Field

from ddp_ladder.analysis.decisions import Decision, Work, decide, with_cost
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.common.files import readable, write_json
from ddp_ladder.common.findings import Finding
from ddp_ladder.common.formats import count, duration, in_short, percent, significant
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.model import Amount, Model, Positive, Several, Version1
from ddp_ladder.gates.gate import Verdict, judge
from ddp_ladder.gates.interval import in_doubt
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.ledger.jobs import job_files, read_rows
from ddp_ladder.measuring.fingerprint import OTHER_PLACE, changes, spec_changes
from ddp_ladder.plan.plan import Hours, Plan, RunSpec, ScaleJob, chain_plan
from ddp_ladder.plan.short_runs import last_fit, resolved, script_digest
from ddp_ladder.preflight.result import result_of
from ddp_ladder.production.chain import Chain, Link, chain_directory, hours_of, read_chain_plan, used_hours
from ddp_ladder.production.chain import decide as why_over
from ddp_ladder.records.record import Record
from ddp_ladder.run.interruption import MARGIN_S
from ddp_ladder.run.preflight import part_s
from ddp_ladder.settings.checks import PASSES_BATCH
from ddp_ladder.settings.keys import Settings, Stage
from ddp_ladder.settings.terms import PRODUCTION, REFERENCE_VARIANT, REHEARSAL, Scale

REHEARSAL_STARTS_MIN = 5  # of both links: preflight, imports, first steps
OF_A_CHAIN = frozenset(
    ("stage", "directory", "wrapper", "max_steps", "max_seconds", "profile_steps", "count_flops", "instrument")
)
"""Fields in which a link differs from the run that was measured, and that change no step: its place, how it ends, and
what is examined. Its arguments are compared by themselves."""


class ProductionStage(Stage):
    """The job of a link, in a stage's place."""

    name = PRODUCTION


class RehearsalStage(Stage):
    """The job of a rehearsal, in a stage's place."""

    name = REHEARSAL


@dataclass(frozen=True)
class Production:
    """What a start of production does."""

    plan: Plan  # of one job
    chain: Chain
    rule: str  # why this scale, in words
    doubts: tuple[str, ...]  # on the scale
    measured: str = ""  # why the ladder has no figure, or other arguments that it is of

    @property
    def job(self) -> ScaleJob:
        return self.plan.jobs[0]

    def following(self, links: Sequence[Link], since: int) -> tuple[ScaleJob, Finding | None]:
        """Return the job of the next link, and why none follows, if so. since: as in decide."""
        chain = self.chain.holding(links)
        job = chain.within_hours(self.job, used_hours(links))
        return job, why_over(chain, job, [link for link in links if link.end != "running"], since)


def production_of(
    settings: Settings, ladder: Plan, results: Path, runs: RunRecords | None = None, on_slurm: bool = True
) -> Production:
    """Return what production does. Raises UserError for a scale that is not proven, and without up_to_hours or batch.

    ladder: the plan of the ladder. runs: its records, if they have been read.
    """
    settings = resolved(settings)
    experiment, where = settings.experiment, settings.config.where
    keys = experiment.production
    if keys.up_to_hours is None:
        what = "the hours that production may use are not set"
        allowed = ladder.hour_unit.of_device("GPU hours, greater than 0")
        advice = "set up_to_hours below production; no job is begun that could exceed them"
        raise UserError(Problem(where(PRODUCTION, "up_to_hours"), what, "null", allowed, advice))
    _require_batch(settings, ladder, results)
    runs = runs or RunRecords(results)
    scale, point, rule, doubts, decision = _proven(settings, ladder, results, runs)
    mode = experiment.modes[0]
    stage = ProductionStage(scales=(scale,), runtime=keys.runtime, slurm=keys.slurm)
    plan = chain_plan(settings, stage, scale, mode, f"{experiment.results}/{PRODUCTION}")
    _require_same_chain(plan.jobs[0].runs[0], chain_directory(results))
    of_figure = _of(ladder, scale, mode)
    unlike = _unlike(of_figure, plan.jobs[0].runs[0], runs) if point else {}
    arguments = unlike.pop("args_template", "")
    unlike = {name: text for name, text in unlike.items() if name not in experiment.fingerprint.may_differ}
    if point is None:
        measured = f"{scale} was not measured{_of_other_settings(of_figure, runs)}"
    else:
        measured = f"what was measured differs: {'; '.join(unlike.values())}" if unlike else arguments
    promise = None if unlike else point
    chain = Chain(
        scale=str(scale),
        gpus=scale.world_size,
        gpus_held=max((row.gpus for row in read_rows(results) if row.scale == str(scale)), default=0),
        runtime_min=keys.runtime,
        up_to_hours=keys.up_to_hours,
        warn_before_s=keys.warn_before_s,
        preflight_s=_preflight_s(plan.jobs[0], results),
        is_on_slurm=on_slurm,
        slower_percent=keys.slower_percent,
        slower=keys.slower,
        promised_samples_per_s=promise["samples_per_s"] if promise else None,
        promise_doubt=in_doubt(promise.rate) if promise else "",
        training_hours=decision.hours(promise) if decision and promise else None,
        training_samples=_work(settings, ladder, runs).total(plan.jobs[0].runs[0].global_batch),
        centre_hours=plan.units.hours,
    )
    _require_time(settings, chain)
    return Production(plan, chain, rule, tuple(doubts), measured)


def _require_batch(settings: Settings, ladder: Plan, results: Path) -> None:
    """Raise UserError if the batch is a range, and none of it is chosen: the smallest is no choice."""
    if ladder.batch_search is None:
        return
    where = settings.config.where("workload", "batch_per_gpu")
    what = "the batch per GPU is not chosen yet, for these settings and the script as it is now"
    last = last_fit(results, ladder)
    found = None if last is None else f"the last search chose {last.chosen}, for others"
    advice = "climb first, or run `snakemake fit` with the same profile; or set batch_per_gpu to a number"
    raise UserError(Problem(where, what, found, next=advice))


def _unlike(measured: Sequence[RunSpec], link: RunSpec, runs: RunRecords) -> dict[str, str]:
    """Return by field in what a link is not like the runs that were measured: what they say is not promised for it."""
    record = next((each for spec in measured if isinstance(each := runs.made(spec), Record)), None)
    unlike = {name: text for name, text in spec_changes(measured[0], link).items() if name not in OF_A_CHAIN}
    then, now = record and record.fingerprint.script_sha256, script_digest(link)
    templates = [spec.model_dump(include={"directory_template"}) for spec in (measured[0], link)]
    unlike |= changes(*templates)
    if then and now:
        unlike |= changes({"script_sha256": then}, {"script_sha256": now})
    if _passes_batch(measured[0]) and not _passes_batch(link):
        unlike["batch_per_gpu"] = "batch_per_gpu: was passed to the script ({batch_per_gpu}), is not"
    return unlike


def _passes_batch(spec: RunSpec) -> bool:
    return any(PASSES_BATCH.search(text) for text in (*spec.args_template, *spec.env_template.values()))


def _of_other_settings(specs: Iterable[RunSpec], runs: RunRecords) -> str:
    """Return why runs that are there are not those of these settings, in words; empty if there are none."""
    for spec in specs:
        record = runs.made(spec)
        if isinstance(record, Record) and record.spec_hash != spec.hash:
            changed = "; ".join(spec_changes(record.spec, spec).values()) or OTHER_PLACE
            return f" with these settings: {spec.name} was with others ({changed})"
        if isinstance(record, Record) and record.failure is not None:
            return f": {spec.name} failed ({record.failure.verdict})"
        if isinstance(record, ValueError):
            return f": {spec.name} cannot be read ({record})"
    return ""


def _require_same_chain(spec: RunSpec, directory: Path) -> None:
    """Raise UserError if the directory has links of another script, arguments or scale: their state is not this one's.

    What a link may use, and Slurm's options, may change from one link to the next. Without plan.json nothing is
    compared: a person has deleted it.
    """
    if next(job_files(directory), None) is None or not (directory / "plan.json").exists():
        return
    before = read_chain_plan(directory).jobs[0].runs[0]
    pairs = {name: (str(getattr(before, name)), str(getattr(spec, name))) for name in ("scale", "mode", "script")}
    if before.scale == spec.scale:  # the arguments may name the run's directory
        pairs["arguments"] = join(before.args), join(spec.args)
    changed = [f"{name} {then} (now {now})" for name, (then, now) in pairs.items() if then != now]
    if changed:
        what = "the links in it are of another chain, whose state the script would go on from"
        advice = f"set what it was, or move it: mv {quote(str(directory))} {quote(f'{directory}-1')}"
        raise UserError(Problem(str(directory), what, "; ".join(changed), next=advice))


def _of(plan: Plan, scale: Scale, mode: str) -> tuple[RunSpec, ...]:
    """Return the reference variant's runs of a scale and mode."""
    wanted = (scale, mode, REFERENCE_VARIANT)
    return tuple(run for run in plan.runs if (run.scale, run.mode, run.variant) == wanted)


def _preflight_s(job: ScaleJob, results: Path) -> float:
    """Return how long the preflight of a link takes: as in the last link, or the ladder; else how long it may."""
    if not job.preflight.enabled:
        return 0.0
    for directory in (chain_directory(results), results):
        with suppress(OSError, ValueError):
            known = result_of(directory, job.scale)
            if known is not None and known.status != "failed":
                return known.took_s
    return 2 * part_s(job.scale.nodes, job.preflight.limit_s(job.scale.nodes))


def _require_time(settings: Settings, chain: Chain) -> None:
    """Raise UserError if a link has no time for its script before the signal."""
    if chain.before_signal_s(chain.runtime_min) > 0:
        return
    parts = {"the preflight": chain.preflight_s, "the script after the signal (warn_before_s)": chain.warn_before_s}
    parts |= {"the end of a job under Slurm": MARGIN_S} if chain.is_on_slurm else {}
    taken = ", ".join(f"{duration(seconds)} for {what}" for what, seconds in parts.items() if seconds)
    least = next(minutes for minutes in from_one(1) if chain.before_signal_s(minutes) > 0)
    where, what = settings.config.where(PRODUCTION, "runtime"), "a job has no time for the script before the signal"
    found, allowed = f"{duration(60 * chain.runtime_min)}, of which {taken}", f"{least} minutes or more"
    raise UserError(Problem(where, what, found, allowed, "raise production.runtime, or lower production.warn_before_s"))


def _work(settings: Settings, ladder: Plan, runs: RunRecords) -> Work:
    """Return the whole training, by the keys of the report."""
    keys = settings.experiment.report
    made = (runs.made(spec) for spec in ladder.runs)
    good = [record for record in made if isinstance(record, Record) and record.status == "ok"]
    asked = {name: getattr(keys, name) for name in ("epochs", "samples", "steps", "tokens")}
    return Work.seen_in(good, ladder.units.tokens_per_sample, **asked)


Proven = tuple[Scale, ScalePoint | None, str, list[str], Decision | None]


def _proven(settings: Settings, ladder: Plan, results: Path, runs: RunRecords) -> Proven:
    """Return the scale, its point if it was measured, why it, doubts, and the decision."""
    keys, where = settings.experiment.production, settings.config.where(PRODUCTION, "scale")
    verdicts = {stage: judge(ladder, stage, results, runs) for stage in ladder.stages}
    judged = [point for point in verdicts[ladder.stages[-1]].points if point.variant == REFERENCE_VARIANT]
    points = with_cost(judged, _work(settings, ladder, runs), ladder.units)
    decisions = decide(points, {stage: gate.min_efficiency for stage, gate in ladder.gates.items()})
    decision = next((each for each in decisions if each.mode == settings.experiment.modes[0]), None)
    if keys.scale == "recommended":
        if decision is None or decision.recommended is None:
            what = f"no scale is recommended yet{_of_other_settings(ladder.runs, runs)}"
            advice = "climb first (snakemake --profile ...), or name a scale, such as 2x4"
            raise UserError(Problem(where, what, "recommended", next=advice))
        wanted, rule = decision.recommended, decision.rule
        doubts = [decision.doubt] if decision.doubt else []
    else:
        wanted_at = (keys.scale, settings.experiment.modes[0])
        point = next((each for each in points if (each.scale, each.mode) == wanted_at), None)
        rule, doubts = f"{PRODUCTION}.scale", []
        if point is None or point["samples_per_s"] is None:
            why = _of_other_settings(_of(ladder, *wanted_at), runs)
            _require(keys.unproven, where, f"{keys.scale} was not measured{why}", _measured(points))
            return keys.scale, None, rule, [f"{keys.scale} is not proven"], decision
        wanted = point
        doubts += [f"its speed is in doubt: {words}"] if (words := in_doubt(point.rate)) else []
    proven = _measured([point for point in points if not list(_closed_gates(verdicts, point.stage))])
    for problem in _closed_gates(verdicts, wanted.stage):
        _require(keys.unproven, where, f"{wanted.scale} is not proven: {problem}", proven)
        doubts.append(f"{wanted.scale} is not proven: {problem}")
    return wanted.scale, wanted, rule, doubts, decision


def _require(unproven: bool, where: str, what: str, proven: str) -> None:
    """Raise UserError unless the settings allow a scale that is not proven."""
    if not unproven:
        advice = "climb to it first (snakemake --profile ...); `unproven: true` below production takes it all the same"
        allowed = f"recommended, or one of {proven}" if proven else "nothing yet"
        raise UserError(Problem(where, what, None, allowed, advice))


def _measured(points: Sequence[ScalePoint]) -> str:
    return in_short(list(dict.fromkeys(str(point.scale) for point in points if point["samples_per_s"] is not None)))


def _closed_gates(verdicts: dict[str, Verdict], stage: str) -> Iterator[str]:
    """Yield why the gates up to a stage are closed."""
    for name, verdict in verdicts.items():
        if not verdict.is_open:
            yield f"the gate of {name} is closed ({verdict.why})"
        if name == stage:
            return


def rehearsal_plan(settings: Settings) -> Plan:
    """Return the plan of a rehearsal: at the smallest scale of several ranks, or at the only one.

    One rank would not show that the others find no state of theirs.
    """
    settings = resolved(settings)  # without a choice, of the smallest batch: no figure is promised by it
    experiment, keys = settings.experiment, settings.experiment.production
    scales = sorted(experiment.scales, key=lambda scale: (scale.world_size, scale.nodes))
    scale = next((scale for scale in scales if scale.world_size > 1), scales[0])
    runtime = math.ceil(2 * (keys.rehearse_s + keys.warn_before_s) / 60) + REHEARSAL_STARTS_MIN
    stage = RehearsalStage(scales=(scale,), runtime=runtime, slurm=keys.slurm)
    results = f"{experiment.results}/{PRODUCTION}/{REHEARSAL}"
    return chain_plan(settings, stage, scale, experiment.modes[0], results)


# In words


def dry_run_text(production: Production, links: Sequence[Link], rehearsed: str) -> str:
    """Return what `snakemake production` would do, and what it can cost. rehearsed: the rehearsal in words."""
    chain, job = production.chain.holding(links), production.job
    used, (_, end) = used_hours(links), production.following(links, since=len(links))
    rate, unit, spec = chain.promised_samples_per_s, chain.hour_unit(job), job.runs[0]
    slower = f"slower by {percent(chain.slower_percent / 100)} or more: {chain.slower}"
    arguments = f"; of other arguments ({production.measured})" if production.measured else ""
    cost = unit.in_words(chain.cost(chain.most_hours(job)))
    if chain.billed_gpus != chain.gpus:
        cost += f", as Slurm gives it {chain.billed_gpus} GPUs"
    rows = {
        "scale": f"{chain.scale}, {count(chain.gpus, 'rank')} ({production.rule})",
        "batch": f"{spec.batch_per_gpu} per GPU, {spec.global_batch} in all",
        "command": " ".join(("python", spec.script, *spec.args)),
        "link": f"at most {duration(60 * job.runtime_min)}, {cost}; {chain.signal_in_words}",
        "next": end.measured if end else f"link {len(links) + 1}",
        "hours": f"{hours_of(chain, links, job)} used by {count(len(links), 'link')}; "
        f"at most {count(chain.full_links_left(job, used), 'further link')} of full length",
        "promised": f"nothing: {production.measured}"
        if rate is None
        else f"{significant(rate)} samples/s, of the ladder{arguments}; {slower}",
        "rehearsal": rehearsed,
    }
    if chain.training_hours is not None:
        needed = unit.in_words(chain.cost(chain.training_hours * chain.billed_gpus))
        rows["training"] = f"about {significant(chain.training_hours)} h, {needed} (report)"
    return _told(PRODUCTION, rows, production.doubts)


def rehearsal_text(settings: Settings) -> str:
    """Return what `snakemake rehearsal` would do, and what it can cost. Raises UserError."""
    plan, keys = rehearsal_plan(settings), settings.experiment.production
    (job,) = plan.jobs
    spec, scale, minutes = job.runs[0], job.scale, job.runtime_min
    cost = Hours.held(minutes / 60, scale.nodes, scale.world_size)
    signal, end = duration(keys.rehearse_s), duration(keys.warn_before_s)
    rows = {
        "scale": f"{scale}: {count(scale.nodes, 'node')}, {count(scale.world_size, 'rank')}",
        "batch": f"{spec.batch_per_gpu} per GPU, {spec.global_batch} in all",
        "command": " ".join(("python", spec.script, *spec.args)),
        "starts": f"two, one after the other; SIGUSR1 after {signal}, the end {end} later at the latest",
        "job": f"one, of at most {duration(60 * minutes)}, {plan.hour_unit.in_words(cost)}",
    }
    return _told(REHEARSAL, rows)


def _told(title: str, rows: Mapping[str, str], doubts: Sequence[str] = ()) -> str:
    lines = [f"{label:<10} {text}" for label, text in rows.items()]
    return "\n".join([title, *(f"  {line}" for line in (*lines, *(f"warning: {doubt}" for doubt in doubts)))])


FILE = "report/planned.json"


class PlannedTraining(Model):
    """The project's trainings at one scale: a milestone of the application."""

    run_type: str
    mode: str
    scale: str
    nodes: Positive
    gpus: Positive
    hours: Amount  # of one training, without the reserve
    samples: Amount  # of one training
    samples_per_s: Amount | None
    gpu_energy_kwh: Amount | None  # of one training; None: the GPUs do not report it
    runs: Positive | None  # trainings; None: not said
    reserve: Amount  # on their hours, a fraction

    @property
    def of_one(self) -> Hours:
        """Return the hours of one training with its reserve."""
        return self._held.asked(1, self.reserve)

    @property
    def of_all(self) -> Hours:
        """Return the hours that the application asks for."""
        return self._held.asked(self.runs, self.reserve)

    @property
    def _held(self) -> Hours:
        return Hours.held(self.hours, self.nodes, self.gpus)


class Planned(Model):
    """The milestones (report/planned.json)."""

    schema_version: Version1 = 1
    written_on: str
    trainings: Several[PlannedTraining] = Field(min_length=1)

    def training(self, scale: str, mode: str) -> PlannedTraining | None:
        """Return the one of this scale and mode; None if the application has none."""
        return next((each for each in self.trainings if (each.scale, each.mode) == (scale, mode)), None)


def keep_planned(results: Path, planned: Planned) -> None:
    """Keep the milestones, unless production has begun: a plan that is made later is none. Raises NotWritten."""
    if not any(job_files(chain_directory(results))):
        write_json(results / FILE, planned.model_dump())


def read_planned(results: Path) -> Planned | None:
    """Read the milestones; None if none were kept before production, or they cannot be read."""
    return readable(Planned, results / FILE)
