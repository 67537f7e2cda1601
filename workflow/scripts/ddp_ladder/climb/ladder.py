"""Look-ups of the rules: files, parameters and order of the ladder. It imports nothing of Snakemake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ddp_ladder.assembly.run_records import RunRecords, as_made
from ddp_ladder.climb.to_do import restore_records, runs_to_do, witnesses_to_do
from ddp_ladder.common.files import NotWritten, check_room, read_json
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.plan.fit import fit_file, planned
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob, read_plan, variants_of
from ddp_ladder.plan.text import changes_in_words
from ddp_ladder.plan.witness import WitnessRun
from ddp_ladder.settings.keys import Settings
from ddp_ladder.settings.terms import Scale, expand
from ddp_ladder.slurm.jobs import job_end_file


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

    def is_kept_after_search(self, scale: str) -> bool:
        """Return True if this start had to search the batch, and with the one that was chosen, no run is missing.

        The search depends on the script, the runs do not: after an edit, the same choice is likely. Writes the records
        of the scale that are missing. Raises OSError (NotWritten).
        """
        if self.plan.batch_search is None:
            return False
        plan, runs = planned(self.settings), RunRecords(Path(self.results))
        if plan.batch_search is not None or scale in runs_to_do(plan, runs):
            return False
        list(restore_records(plan, runs))
        return True

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
