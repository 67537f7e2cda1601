"""What the rules look up: files, parameters and order of the ladder. No Snakemake in here."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.files import RunDirectory
from ddp_ladder.job import failed_attempts
from ddp_ladder.job_end import job_end_file
from ddp_ladder.placeholders import expand
from ddp_ladder.plan import Plan, ScaleJob, make_plan, plain_variants
from ddp_ladder.settings import Scale, Settings
from ddp_ladder.slurm_resources import slurm_resources


@dataclass(frozen=True)
class Ladder:
    """Settings and plan, seen from the workflow. Paths are strings, relative to the working directory."""

    settings: Settings
    plan: Plan

    @classmethod
    def of(cls, settings: Settings) -> Ladder:
        return cls(settings, make_plan(settings))

    @property
    def results(self) -> str:
        return self.plan.results

    def record_patterns(self, stage: str) -> list[str]:
        """The records that each of a stage's jobs writes, with {scale} for its scale."""
        experiment = self.settings.experiment
        return [
            f"{self.results}/runs/{variant.name}/{mode}/{{scale}}/r{repeat}/record.json"
            for variant in (*experiment.variants, *plain_variants(experiment, stage))
            for mode in experiment.modes
            for repeat in range(1, experiment.repeats + 1)
        ]

    @property
    def data_marker(self) -> str:
        """Written when the data preparation has ended well; beside the data, so that it goes when they go."""
        return f"{self.settings.experiment.workload.data_dir}/.prepared"

    @property
    def prepare_command(self) -> list[str]:
        """Argument list of workload.prepare; empty where there is nothing to prepare."""
        workload = self.settings.experiment.workload
        values = {"data_dir": workload.data_dir, "seed": workload.seed}
        if not workload.prepare:
            return []
        python = self.settings.site.software.python or sys.executable
        return [python, *(expand(argument, values) for argument in workload.prepare)]

    @property
    def prepared_data(self) -> list[str]:
        """What the runs wait for: the marker where there is something to prepare."""
        return [self.data_marker] if self.settings.experiment.workload.prepare else []

    def scales(self, stage: str) -> list[str]:
        return [str(job.scale) for job in self.plan.stage_jobs(stage)]

    def stage_of(self, scale: str) -> str:
        return self.plan.job(Scale.parse(scale)).stage

    def gate(self, stage: str) -> str:
        return f"{self.results}/gates/{stage}.json"

    @property
    def last_gate(self) -> str:
        return self.gate(self.plan.stages[-1])

    def records(self, job: ScaleJob) -> list[str]:
        return [f"{self.results}/runs/{run.name}/record.json" for run in job.runs]

    def stage_records(self, stage: str) -> list[str]:
        return [record for job in self.plan.stage_jobs(stage) for record in self.records(job)]

    def judged_records(self, stage: str) -> list[str]:
        """Records that a gate is judged on: the stage's own, and those below it as its baseline."""
        upto = self.plan.stages[: self.plan.stages.index(stage) + 1]
        return [record for each in upto for record in self.stage_records(each)]

    def priority(self, scale: str) -> int:
        """Above 0; of the scales that could run now, the first of the plan has the highest."""
        scales = [str(job.scale) for job in self.plan.jobs]
        return len(scales) - scales.index(scale)

    def gate_before(self, stage: str) -> list[str]:
        """The gate of the stage before; empty for the first stage."""
        before = self.plan.stage_before(stage)
        return [self.gate(before)] if before else []

    def stages_cut_short(self) -> list[str]:
        """Stages of which Slurm ended a job before it left its records: no gate was judged, and none can open."""
        ended = [job for job in self.plan.jobs if job_end_file(Path(self.results), str(job.scale)).exists()]
        return list(dict.fromkeys(job.stage for job in ended))

    def specs_hash(self, scale: str) -> str:
        """Changes when anything that is measured at this scale changes."""
        return self.plan.job(Scale.parse(scale)).hash

    def failed_attempts(self, scale: str) -> int:
        """Grows with each attempt that failed, so that the next start of the workflow tries again."""
        runs = self.plan.job(Scale.parse(scale)).runs
        return sum(failed_attempts(RunDirectory(Path(self.results) / "runs" / run.name)) for run in runs)

    def resource(self, scale: str, name: str) -> str | int | None:
        """One of the things that a scale's job asks Slurm for."""
        value: str | int | None = slurm_resources(self.plan.job(Scale.parse(scale)))[name]
        return value

    def scale_pattern(self, stage: str) -> str:
        """Regular expression for the scales of a stage; matches nothing where the stage is absent."""
        return "|".join(self.scales(stage)) or "(?!)"
