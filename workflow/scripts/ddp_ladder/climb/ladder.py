"""Look-ups of the rules: files, parameters and order of the ladder, and the runs that a start has to measure.

It imports nothing of Snakemake. No time stamp, parameter or metadata of an earlier start decides. A run is kept if its
raw files give a good record of exactly the spec that the settings give it now; every other run is measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ddp_ladder.analysis.prediction import (
    forecast_line,
    make_forecast,
    planned_forecasts,
    series_of_job,
    write_forecast,
)
from ddp_ladder.assembly.run_records import RestoredRecords, RunRecords, as_made
from ddp_ladder.common.files import NotWritten, check_room, read_bytes, read_json, sha256
from ddp_ladder.common.formats import count, duration
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.gates.gate import Verdict, closed_variants, judge
from ddp_ladder.gates.scaling import next_repeat
from ddp_ladder.ledger.jobs import NEARLY_USED, OR_LESS_TIME, runtime_for
from ddp_ladder.measuring.statistic import median
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob, read_plan, variants_of
from ddp_ladder.plan.short_runs import SHARE, WitnessRun, fit_file, planned
from ddp_ladder.plan.text import changes_in_words
from ddp_ladder.records.record import Record, write_record
from ddp_ladder.records.witness import missing_witnesses
from ddp_ladder.settings.keys import Settings
from ddp_ladder.settings.terms import REFERENCE_VARIANT, Scale, expand
from ddp_ladder.slurm.jobs import job_end_file


def runs_to_do(plan: Plan, runs: RunRecords) -> Mapping[str, tuple[RunSpec, ...]]:
    """Return the runs that have to be measured, by scale; without the scales of which every run is kept."""
    plan = as_made(plan, runs)
    to_do: dict[str, tuple[RunSpec, ...]] = {}
    for stage in plan.stages:
        # A variant that has yet to be measured below a gate is not judged yet.
        not_judged = {spec.variant for missing in to_do.values() for spec in missing}
        left_out = _left_out(plan, stage, runs) - not_judged
        missing_at = {str(job.scale): _missing(plan, job, runs, left_out) for job in plan.stage_jobs(stage)}
        to_do |= {scale: missing for scale, missing in missing_at.items() if missing}
    return to_do


def witnesses_to_do(plan: Plan, to_do: Mapping[str, Sequence[RunSpec]], results: Path) -> tuple[WitnessRun, ...]:
    """Return the witness runs that the job of the first scale makes, if it has runs to measure."""
    return missing_witnesses(plan, results) if str(plan.first_scale) in to_do else ()


def _missing(plan: Plan, job: ScaleJob, runs: RunRecords, left_out: Collection[str]) -> tuple[RunSpec, ...]:
    stopped, missing = set(left_out), []
    for spec in job.runs:
        record = runs.kept(spec)
        if record is None and spec.variant not in stopped:
            missing.append(spec)
        elif record is not None and record.failure is not None:
            stopped.add(spec.variant)  # as the job does: a plain baseline that fails is not tried for every repeat
    if missing or not job.more:
        return tuple(missing)
    # The next repeat that the figures of the scale need.
    specs = (*plan.job(plan.first_scale).runs, *job.runs)
    return next_repeat(plan, job, {run.name: record for run in specs if (record := runs.kept(run))}, stopped)


def _left_out(plan: Plan, stage: str, runs: RunRecords) -> set[str]:
    """Return the variants that the gate before keeps out of a stage, as it is judged now."""
    before = plan.stage_before(stage)
    if before is None or all(spec.variant == REFERENCE_VARIANT for spec in plan.runs if spec.stage == stage):
        return set()
    verdict = judge(plan, before, runs.results, RestoredRecords(runs))
    return {name for name, word in verdict.variants.items() if word == "closed" and name != REFERENCE_VARIANT}


def restore_records(plan: Plan, runs: RunRecords) -> Iterator[Path]:
    """Write the records that are missing, disagree with their raw files or were made by other rules; yield their files.

    Only of scales without runs to measure: the others are left to their jobs.
    """
    to_do = runs_to_do(plan, runs)
    for job in as_made(plan, runs).jobs:
        for spec in () if str(job.scale) in to_do else job.runs:
            record, file = runs.kept(spec), runs.directory(spec).record
            if record is None or file.is_dir():
                continue
            if not runs.is_believed(spec) or runs.directory(spec).path in runs.judged_anew:
                write_record(file, record)
                runs.directory(spec).assembled.unlink(missing_ok=True)
                yield file


def runs_of_edited_scripts(plan: Plan, runs: RunRecords) -> list[RunSpec]:
    """Return the kept runs whose script has changed since."""
    now = {}
    for script in {spec.script for spec in plan.runs}:
        with contextlib.suppress(OSError):
            now[script] = sha256(read_bytes(Path(script)))
    made = as_made(plan, runs).runs
    kept = [(spec, record) for spec in made if spec.script in now and (record := runs.kept(spec))]
    return [spec for spec, record in kept if record.fingerprint.script_sha256 not in (None, now[spec.script])]


def runs_of_other_settings(
    to_do: Mapping[str, tuple[RunSpec, ...]], runs: RunRecords
) -> list[tuple[RunSpec, RunSpec | None]]:
    """Return the finished runs that are measured again: what they are now, and what they were.

    None: the files are there and cannot be read, as those of another version of ddp-ladder.
    """
    changed: list[tuple[RunSpec, RunSpec | None]] = []
    for spec in (spec for missing in to_do.values() for spec in missing):
        record = runs.made(spec)
        if isinstance(record, ValueError):
            changed.append((spec, None))
        elif isinstance(record, Record) and record.failure is None and record.spec_hash != spec.hash:
            changed.append((spec, record.spec))
    return changed


# --- The forecasts of a climb: written by each gate for the stages above it, shown before they begin.


ToDo = Mapping[str, Sequence[RunSpec]]  # by scale, the runs still to be measured


def after_gate(plan: Plan, gate: Verdict, runs: RunRecords) -> Iterator[str]:
    """Write the forecasts of the stages above a gate, and yield the lines on the stage that begins now.

    A stage below has to be measured first, but the gate's records say something of all stages above it. Nothing here
    keeps a gate from its verdict.
    """
    above = plan.stages[plan.stages.index(gate.stage) + 1 :]
    left_out = closed_variants(gate)
    try:
        for stage in above:
            write_forecast(runs.results, stage, make_forecast(plan, stage, runs, left_out, gate.is_open))
        if gate.is_open and above:
            to_do = {
                str(job.scale): [run for run in job.runs if run.variant not in left_out and runs.kept(run) is None]
                for job in plan.stage_jobs(above[0])
            }
            yield from lines_before(plan, above[:1], to_do, runs.results)
            yield from (f"warning: {short}" for short in short_runtimes(plan, above[:1], to_do, runs, "config.yaml"))
    except (OSError, ValueError) as error:
        what = f"{error.filename} cannot be written: {error.strerror}" if isinstance(error, NotWritten) else error
        yield f"warning: no forecast: {what}"


def forecast_text(plan: Plan, stages: Sequence[str], to_do: ToDo, results: Path) -> str:
    """Return the forecasts of what a start has to measure, for a dry run; empty without one."""
    lines = [f"  {line}" for line in lines_before(plan, stages, to_do, results)]
    return "\n".join(["\n", "What the scales below let expect:", *lines]) if lines else ""


def lines_before(plan: Plan, stages: Sequence[str], to_do: ToDo, results: Path) -> Iterator[str]:
    """Yield a line for each series of these stages that is still to be measured and has a forecast."""
    for job, forecast in planned_forecasts(results, plan):
        missing = {(run.variant, run.mode) for run in to_do.get(str(job.scale), ())}
        if job.stage in stages and (forecast.variant, forecast.mode) in missing:
            yield forecast_line(job, forecast, plan.hour_unit)


def short_runtimes(plan: Plan, stages: Sequence[str], to_do: ToDo, runs: RunRecords, config: str) -> list[Problem]:
    """Return a problem for each scale of these stages whose missing runs need more than the stage's runtime.

    A run takes as long as one of this scale took, or else as the forecast says. config: the file to change.
    """
    waiting = [job for job in plan.jobs if job.stage in stages and to_do.get(str(job.scale))]
    forecasts = planned_forecasts(runs.results, plan) if waiting else ()
    times_s = {(str(job.scale), run.variant, run.mode): run.run_s or 0.0 for job, run in forecasts}
    for job in waiting:
        for (variant, mode), specs in series_of_job(job).items():
            if took_s := [kept.timing.wall_s for spec in specs if (kept := runs.kept(spec)) and kept.timing]:
                times_s[str(job.scale), variant, mode] = median(took_s)
    problems = []
    for job in waiting:
        missing = [spec for spec in to_do[str(job.scale)] if not spec.is_plain]
        needed_s = sum(times_s.get((str(job.scale), spec.variant, spec.mode), 0.0) for spec in missing)
        if needed_s and job.witness is not None:
            followed_s = min(job.witness.seconds, SHARE * 60 * job.runtime_min)
            needed_s += followed_s * len(witnesses_to_do(plan, to_do, runs.results))
        if needed_s > NEARLY_USED * 60 * job.runtime_min:
            key = f"stages.{job.stage}.runtime"
            what = f"too short for {job.scale}: {count(len(missing), 'run')} will take about {duration(needed_s)}"
            what = f"{what} with start-up, at the measured speed"
            advice = f"set {key}: {runtime_for(needed_s / 60)}, {OR_LESS_TIME}"
            advice = f"{advice}; a run that finds no time left is not started"
            problems.append(Problem(f"{config}: {key}", what, f"{job.runtime_min} min", next=advice))
    return problems


@dataclass(frozen=True)
class Ladder:
    """Settings and plan, seen from the workflow. Paths are strings, relative to the working directory."""

    settings: Settings
    plan: Plan

    @classmethod
    def of(cls, settings: Settings) -> Ladder:
        return cls(settings, planned(settings))

    @property
    def results(self) -> str:
        return self.plan.results

    def record_patterns(self, stage: str) -> list[str]:
        """Return the records that each of a stage's jobs writes, with {scale} for its scale."""
        experiment = self.settings.experiment
        return [
            f"{self.results}/runs/{variant}/{mode}/{{scale}}/r{repeat}/record.json"
            for variant in variants_of(experiment, stage)
            for mode in experiment.modes
            for repeat in range(1, experiment.repeats.at_least + 1)
        ]

    @property
    def data_marker(self) -> str:
        """The file that marks the data as prepared. It is in their directory, so it is deleted with them."""
        return f"{self.settings.experiment.workload.data_dir}/.prepared"

    @property
    def prepare_command(self) -> list[str]:
        """The script of workload.prepare and its arguments; empty if there is nothing to prepare."""
        workload = self.settings.experiment.workload
        values = {"data_dir": workload.data_dir, "seed": workload.seed}
        return [expand(argument, values) for argument in workload.prepare or ()]

    @property
    def prepared_data(self) -> list[str]:
        """The files that the runs wait for: the marker, if there is something to prepare."""
        return [self.data_marker] if self.settings.experiment.workload.prepare else []

    def job(self, scale: str) -> ScaleJob:
        return self.plan.job(Scale.parse(scale))

    def gate(self, stage: str) -> str:
        return f"{self.results}/gates/{stage}.json"

    def records(self, job: ScaleJob) -> list[str]:
        return [f"{self.results}/runs/{run.name}/record.json" for run in job.runs]

    @cached_property
    def runs(self) -> RunRecords:
        return RunRecords(Path(self.results))

    @property
    def plan_as_made(self) -> Plan:
        """The plan with the further repeats that have been begun among its runs."""
        return as_made(self.plan, self.runs)

    @cached_property
    def to_do(self) -> Mapping[str, tuple[RunSpec, ...]]:
        """Runs that this start has to measure, by scale."""
        return runs_to_do(self.plan, self.runs)

    @cached_property
    def witnesses(self) -> tuple[WitnessRun, ...]:
        """Runs that follow their batches, which this start has to make."""
        return witnesses_to_do(self.plan, self.to_do, Path(self.results))

    def awaited_records(self, stage: str) -> list[str]:
        """Return the records that a stage's gate waits for: those of the scales that still have runs to measure."""
        jobs = self.plan.stage_jobs(stage)
        return [file for job in jobs if str(job.scale) in self.to_do for file in self.records(job)]

    def stage_records(self, stage: str) -> list[str]:
        return [file for job in self.plan.stage_jobs(stage) for file in self.records(job)]

    def preflight_file(self, scale: str) -> str:
        return f"{self.results}/preflight/{scale}.json"

    def fit_file(self, scale: str) -> str:
        return str(fit_file(Path(self.results), scale))

    def fit_to_make(self) -> list[str]:
        """Return the file of the search that is still to be made; empty if a batch is chosen.

        Raises UserError if the settings ask for no search.
        """
        batch = self.settings.experiment.workload.batch_per_gpu
        if isinstance(batch, int):
            where, allowed = self.settings.config.where("workload", "batch_per_gpu"), "auto, or {from: 8, to: 4096}"
            what, advice = "the batch is set, so there is nothing to search", "set batch_per_gpu: auto"
            raise UserError(Problem(where, what, str(batch), allowed, advice))
        return [] if self.plan.batch_search is None else [self.fit_file(str(self.plan.first_scale))]

    def priority(self, scale: str) -> int:
        """Return a number above 0, higher for a scale that comes earlier in the plan."""
        scales = [str(job.scale) for job in self.plan.jobs]
        return len(scales) - scales.index(scale)

    def gate_before(self, stage: str) -> list[str]:
        """Return the gate of the stage before; empty for the first stage."""
        return [self.gate(before)] if (before := self.plan.stage_before(stage)) else []

    def stages_cut_short(self) -> list[str]:
        """Return the stages of which Slurm ended a job before it wrote its records: their gates were not judged."""
        ended = [job for job in self.plan.jobs if job_end_file(Path(self.results), str(job.scale)).exists()]
        return list(dict.fromkeys(job.stage for job in ended))

    @property
    def has_room(self) -> bool:
        """True if the results can be written. Nothing is printed: the failed write has been reported."""
        try:
            check_room(Path(self.results))
        except NotWritten:
            return False
        return True

    @property
    def plan_to_write(self) -> list[str]:
        """plan.json if its content is not what the settings give now; empty if it is. Time stamps do not matter."""
        file = f"{self.results}/plan.json"
        try:
            return [] if read_json(Path(file)) == self.plan.to_json() else [file]
        except (OSError, ValueError):
            return [file]

    def report_options(self, centre: str | None) -> list[str]:
        units = self.plan.units.model_dump_json()  # plan.json may be older
        wanted = {**self.settings.experiment.report.model_dump(exclude_defaults=True), "units": units, "centre": centre}
        given = {f"--{name}": str(value) for name, value in wanted.items() if value is not None}
        return [word for option in given.items() for word in option]

    @property
    def changes_since_plan(self) -> str:
        """The differences between the settings and plan.json, in words; empty if there are none."""
        try:
            # A job of this start may have chosen the batch.
            now = self.plan if self.plan.batch_search is None else planned(self.settings)
            return changes_in_words(read_plan(Path(self.results) / "plan.json"), now)
        except UserError:
            return ""  # reported by what needs the plan

    def measures(self, stages: Sequence[str]) -> bool:
        return any(run.stage in stages for missing in self.to_do.values() for run in missing)

    def scale_pattern(self, *stages: str) -> str:
        """Return a regular expression for the scales of these stages; it matches nothing if there are none."""
        return "|".join(str(job.scale) for job in self.plan.jobs if job.stage in stages) or "(?!)"


def stages_up_to(plan: Plan, stage: str | None, file: Path) -> tuple[str, ...]:
    """Return the stages from the first to ``stage``; all of them for None.

    Raises UserError for a stage that the experiment does not have.
    """
    if stage is None:
        return plan.stages
    if stage not in plan.stages:
        where, advice = f"{file}: stages.{stage}", f"add stages.{stage} to the file, or name another stage"
        raise UserError(Problem(where, f"this experiment has no {stage}", None, ", ".join(plan.stages), advice))
    return plan.stages[: plan.stages.index(stage) + 1]


def preflight_scale(plan: Plan, asked: str | None, file: Path) -> str:
    """Return the scale that `snakemake preflight` tests: the largest one if none was asked for.

    file: the experiment. Raises UserError for a scale that the plan does not have.
    """
    scales = [job.scale for job in plan.jobs]
    if asked is None:
        return str(max(scales, key=lambda scale: (scale.world_size, scale.nodes)))
    if asked not in map(str, scales):
        where, allowed = "--config preflight_scale", ", ".join(map(str, scales))
        advice = f"name one of these, or add it to the scales of a stage in {file}"
        raise UserError(Problem(where, "the plan has no such scale", asked, allowed, advice))
    return asked
