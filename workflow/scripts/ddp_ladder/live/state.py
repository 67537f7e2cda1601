"""What a live view knows of a ladder at one time: facts from its files, and from squeue. No text, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ddp_ladder.climb.start_lock import Start
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.verdict import Verdict
from ddp_ladder.live.samples import NodeSample
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob
from ddp_ladder.preflight.result import PreflightResult
from ddp_ladder.records.record import Record
from ddp_ladder.run.expected_steps import Expected
from ddp_ladder.run.scale_job import limits_s
from ddp_ladder.slurm.job_end import SUBMITTED, JobEnd
from ddp_ladder.slurm.scale_lock import Holder
from ddp_ladder.slurm.states import JobState

SILENT_S = 300.0  # a start that has no job judges gates and writes reports, which takes less
RunPhase = Literal["to do", "interrupted", "started", "ended"]


@dataclass(frozen=True)
class RunState:
    """One planned run. record: None while it is not known. progress, expected, samples: of a run that has started.

    An interrupted one was started by a job that no longer holds its scale.
    """

    spec: RunSpec
    phase: RunPhase = "to do"
    record: Record | None = None
    expected: Expected | None = None
    progress: Mapping[str, Any] | None = None
    samples: tuple[NodeSample, ...] = ()

    @property
    def is_good(self) -> bool:
        """Return True if it ended well, or its record is not known yet."""
        return self.phase == "ended" and (self.record is None or self.record.status == "ok")

    @property
    def has_failed(self) -> bool:
        return self.record is not None and self.record.failure is not None


@dataclass(frozen=True)
class ScaleState:
    """One scale. end: what is recorded of its Slurm job; None without one, and after a good end.

    holder: the job that holds the scale; is_alive: whether that is known to go on, None if it cannot be seen.
    """

    job: ScaleJob
    runs: tuple[RunState, ...]
    end: JobEnd | None = None
    holder: Holder | None = None
    is_alive: bool | None = None
    preflight: PreflightResult | None = None

    @property
    def name(self) -> str:
        return str(self.job.scale)

    @property
    def ended(self) -> tuple[RunState, ...]:
        return tuple(run for run in self.runs if run.phase == "ended")

    @property
    def is_done(self) -> bool:
        return len(self.ended) == len(self.runs)

    @property
    def is_held(self) -> bool:
        """Return True if a job holds it, as far as can be seen."""
        return self.holder is not None and not self.holder.ended and self.is_alive is not False

    @property
    def slurm_id(self) -> str | None:
        """The Slurm job whose state is worth asking for; None if there is none, or its end is known."""
        if self.end is not None and self.end.state == SUBMITTED:
            return self.end.job_id
        return self.holder.slurm_id if self.holder is not None and not self.holder.ended else None

    @property
    def bad_end(self) -> JobEnd | None:
        """The bad end of its job that is recorded, if nothing goes on."""
        known = self.end is not None and not self.end.ok and self.end.state not in (SUBMITTED, "")
        return self.end if known and not self.is_held and not self.is_done else None

    @property
    def running(self) -> RunState | None:
        """The run that its job executes now."""
        return next((run for run in self.runs if run.phase == "started"), None) if self.is_held else None


@dataclass(frozen=True)
class QueuedJob:
    """A job as squeue shows it; times in seconds, None if Slurm gives none."""

    state: JobState
    elapsed_s: float | None
    limit_s: float | None


@dataclass(frozen=True)
class SlurmAnswer:
    """Slurm's last answer on all jobs, at asked_s (unix time). problem: why there is none, or no newer one."""

    jobs: Mapping[str, QueuedJob] = field(default_factory=dict)
    asked_s: float | None = None
    problem: str = ""

    def knows(self, job_id: str) -> QueuedJob | None:
        return self.jobs.get(job_id)


@dataclass(frozen=True)
class LadderState:
    """A results directory at one time (unix time).

    start: the start that is at work, or was killed; is_alive: whether its process runs, None if that cannot be seen
    from here. last: the last start that has ended. problems: files that cannot be read.
    """

    results: Path
    now_s: float
    plan: Plan | None = None
    start: Start | None = None
    is_alive: bool | None = None
    last: Start | None = None
    scales: tuple[ScaleState, ...] = ()
    gates: Mapping[str, Verdict] = field(default_factory=dict)
    points: tuple[ScalePoint, ...] = ()
    problems: tuple[str, ...] = ()
    slurm: SlurmAnswer = SlurmAnswer()
    has_report: bool = False
    quiet_s: float = 0.0  # since when, as far as this view has seen, no scale was held

    @property
    def is_silent(self) -> bool:
        """Return True if a start whose process cannot be seen from here does nothing for long: it may be dead."""
        queued = any(self._is_queued(scale) for scale in self.scales)
        return self.start is not None and self.is_alive is None and not queued and self.quiet_s > SILENT_S

    @property
    def is_at_work(self) -> bool:
        """Return True while a start, or a job that one has left, goes on as far as can be seen."""
        has_start = self.start is not None and self.is_alive is not False
        return has_start or any(scale.is_held or self._is_queued(scale) for scale in self.scales)

    @property
    def slurm_ids(self) -> frozenset[str]:
        """The Slurm jobs whose states are worth asking for."""
        return frozenset(scale.slurm_id for scale in self.scales if scale.slurm_id is not None)

    @property
    def is_over(self) -> bool:
        """Return True if nothing goes on: no start, and no job; while Slurm has not answered, that is unknown."""
        is_known = not self.slurm_ids or (self.slurm.asked_s is not None and not self.slurm.problem)
        return self.plan is not None and is_known and not self.is_at_work

    def _is_queued(self, scale: ScaleState) -> bool:
        job = None if scale.slurm_id is None else self.slurm.knows(scale.slurm_id)
        return job is not None and job.state.phase != "ended"

    def left_at_most_s(self, scale: ScaleState) -> float | None:
        """Return the time until the job that holds a scale ends its runs, as the job itself counts it."""
        if scale.holder is None:
            return None
        job = None if scale.slurm_id is None else self.slurm.knows(scale.slurm_id)
        slurm_s = None  # what Slurm left the job when it took the scale
        if job is not None and job.limit_s is not None and job.elapsed_s is not None and self.slurm.asked_s is not None:
            slurm_s = job.limit_s - job.elapsed_s + self.slurm.asked_s - scale.holder.since_s
        runs_s, _ = limits_s(60.0 * scale.job.runtime_min, slurm_s)
        return max(0.0, runs_s - (self.now_s - scale.holder.since_s))

    def stage_scales(self, stage: str) -> tuple[ScaleState, ...]:
        return tuple(scale for scale in self.scales if scale.job.stage == stage)

    def is_judged(self, stage: str) -> bool:
        """Return True if the stage's gate file is of the runs as they are: every run has ended."""
        return stage in self.gates and all(scale.is_done for scale in self.stage_scales(stage))
