"""What the rules look up: files, parameters and order of the ladder. No Snakemake in here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ddp_ladder.files import NotWritten, check_room, read_json
from ddp_ladder.formats import in_short
from ddp_ladder.gate_file import gate_files
from ddp_ladder.job_end import job_end_file
from ddp_ladder.messages import UserError
from ddp_ladder.placeholders import expand
from ddp_ladder.plan import Plan, RunSpec, ScaleJob, make_plan, plain_variants
from ddp_ladder.plan_changes import changes_in_words
from ddp_ladder.plan_file import read_plan
from ddp_ladder.run_records import RunRecords
from ddp_ladder.settings import Scale, Settings
from ddp_ladder.slurm_resources import slurm_resources
from ddp_ladder.to_do import of_another_script, runs_to_do


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
        python = self.settings.site.software.python or "python"
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

    def scale_records(self, scale: str) -> list[str]:
        return self.records(self.plan.job(Scale.parse(scale)))

    @cached_property
    def _runs(self) -> RunRecords:
        return RunRecords(Path(self.results))

    @cached_property
    def to_do(self) -> Mapping[str, tuple[RunSpec, ...]]:
        """The runs that this start has to measure, by scale."""
        return runs_to_do(self.plan, self._runs)

    def awaited_records(self, stage: str) -> list[str]:
        """Records that a stage is judged on once they are there: those of the scales at which something is to do."""
        return [
            file for job in self.plan.stage_jobs(stage) if str(job.scale) in self.to_do for file in self.records(job)
        ]

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

    @property
    def has_room(self) -> bool:
        """Whether the results can be written; whoever failed to has told of it."""
        try:
            check_room(Path(self.results))
        except NotWritten:
            return False
        return True

    @property
    def plan_to_write(self) -> list[str]:
        """plan.json where it does not say what the settings say; time stamps tell nothing of that."""
        file = f"{self.results}/plan.json"
        try:
            return [] if read_json(Path(file)) == json.loads(json.dumps(self.plan.to_json())) else [file]
        except (OSError, ValueError):
            return [file]

    @property
    def changes_since_plan(self) -> str:
        """What the settings say otherwise than plan.json, in words; empty where that is nothing."""
        try:
            return changes_in_words(read_plan(Path(self.results) / "plan.json"), self.plan)
        except UserError:
            return ""  # told by whoever needs the plan

    def announcements(self, stages: Sequence[str]) -> list[str]:
        """What a start says before it begins."""
        said = []
        if not any(run.stage in stages for missing in self.to_do.values() for run in missing):
            said.append("nothing to measure: every run has a good record of these settings; the gates are judged again")
        for stage in stages:
            opened, closed = gate_files(Path(self.results) / "gates", stage)
            if opened.exists() and closed.exists():
                said.append(f"warning: {opened}: {closed.name} is beside it; neither counts, the gate is judged anew")
        edited = [run for run in of_another_script(self.plan, self._runs) if run.stage in stages]
        for script in dict.fromkeys(run.script for run in edited):
            names = [run.name for run in edited if run.script == script]
            said.append(
                f"warning: {script} has changed since it ran as {in_short(names)}; these runs are kept, and not "
                "compared with runs of another version. To repeat them, delete their directories below "
                f"{self.results}/runs"
            )
        return said

    def resource(self, scale: str, name: str) -> str | int | None:
        """One of the things that a scale's job asks Slurm for."""
        value: str | int | None = slurm_resources(self.plan.job(Scale.parse(scale)))[name]
        return value

    def scale_pattern(self, stage: str) -> str:
        """Regular expression for the scales of a stage; matches nothing where the stage is absent."""
        return "|".join(self.scales(stage)) or "(?!)"
