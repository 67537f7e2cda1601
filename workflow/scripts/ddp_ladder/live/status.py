"""What goes on in a ladder, or in a chain, at one time: one reader of its results and of squeue. It writes nothing.

A file is read again only if it has changed, and a run whose record is there is not looked at again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Literal, TypeVar

from ddp_ladder.common.files import ChangedFiles, RunDirectory, read_as
from ddp_ladder.gates.gate import Verdict, gate_files
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.ledger.entries import HOUR_S
from ddp_ladder.nodes.sampler import last_sample, of_gpus
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob, read_plan
from ddp_ladder.production.chain import CHAIN_FILE, Chain, Link, chain_directory, expected_end_s, read_links
from ddp_ladder.production.slower import TABLE, WindowRow, last_window
from ddp_ladder.records.raw_models import Job, Progress, RunFile, read_progress, read_run_file
from ddp_ladder.records.record import Record, read_record
from ddp_ladder.run.progress import expected_steps
from ddp_ladder.slurm.jobs import SUBMITTED, JobEnd, JobState, ask, job_end_file, read_job_end
from ddp_ladder.slurm.lock import Held, Holder, Lock, living, look
from ddp_ladder.slurm.query import SlurmError

ASK_EVERY_S = 10.0
SILENT_EVERY_S = 60.0  # after a question to Slurm without an answer
ANSWER_WITHIN_S = 5.0  # the picture stands still while Slurm is asked
MOST_NODES = 32  # that are looked at each time, and at most shown

T = TypeVar("T")
RunPhase = Literal["to do", "interrupted", "started", "ended"]  # interrupted: its job no longer holds its scale


@dataclass(frozen=True)
class RunState:
    """One planned run."""

    spec: RunSpec
    phase: RunPhase = "to do"
    record: Record | None = None  # None while it is not known
    file: RunFile | None = None  # run.json of one that has begun and not ended: it has no record yet
    expected: int | None = None  # steps of one that goes on; None: unknown
    progress: Progress | None = None  # of one that goes on
    samples: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # the last ones, by node and column


@dataclass(frozen=True)
class ScaleState:
    """One scale."""

    job: ScaleJob
    runs: tuple[RunState, ...]
    end: JobEnd | None = None  # what is recorded of its Slurm job; None without one, and after a good end
    holder: Holder | None = None  # its job, while that lives

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
    def slurm_id(self) -> str | None:
        """The Slurm job whose state is worth asking for; None if there is none, or its end is known."""
        if self.end is not None and self.end.state == SUBMITTED:
            return self.end.job_id
        return self.holder.slurm_id if self.holder is not None else None

    @property
    def bad_end(self) -> JobEnd | None:
        """The bad end of its job that is recorded, if nothing goes on."""
        known = self.end is not None and self.end.state != SUBMITTED
        return self.end if known and self.holder is None and not self.is_done else None

    @property
    def running(self) -> RunState | None:
        """The run that its job executes now."""
        return next((run for run in self.runs if run.phase == "started"), None) if self.holder is not None else None


@dataclass(frozen=True)
class LadderState:
    """A results directory at one time."""

    results: Path
    now_s: float  # unix time
    plan: Plan | None = None
    start: Held | None = None  # the start of Snakemake that is at work, or was the last one
    scales: tuple[ScaleState, ...] = ()
    gates: Mapping[str, Verdict] = field(default_factory=dict)  # by stage
    points: tuple[ScalePoint, ...] = ()
    jobs: Mapping[str, JobState] = field(default_factory=dict)  # Slurm's last answer, by id
    problems: tuple[str, ...] = ()  # what cannot be read, and why Slurm does not answer

    def job_of(self, scale: ScaleState) -> JobState | None:
        """Return what Slurm says of a scale's job."""
        return None if scale.slurm_id is None else self.jobs.get(scale.slurm_id)

    @property
    def is_at_work(self) -> bool:
        """Return True while a start, or a job that one has left, goes on as far as can be seen."""
        queued = any((job := self.job_of(scale)) and job.phase != "ended" for scale in self.scales)
        return bool(self.start and self.start.is_alive) or queued or any(scale.holder for scale in self.scales)

    @property
    def is_measured(self) -> bool:
        return self.plan is not None and all(scale.is_done for scale in self.scales)

    @property
    def is_over(self) -> bool:
        """Return True if nothing goes on; that is unknown until Slurm has answered on every job."""
        is_known = all(scale.slurm_id is None or scale.slurm_id in self.jobs for scale in self.scales)
        return self.plan is not None and is_known and not self.is_at_work


class Reader:
    """The reader of one results directory. ``read`` may be called at any rate."""

    def __init__(self, results: Path) -> None:
        self._results = results
        self._files = ChangedFiles()
        self._silence = ""  # why Slurm does not answer
        self._plan: Plan | None = None
        self._settled: dict[str, RunState] = {}  # runs whose records are there, by name
        self._points: tuple[list[int], tuple[ScalePoint, ...]] = ([], ())
        self._samples: dict[str, tuple[Job, dict[str, Mapping[str, float]]]] = {}  # by node, of each run that goes on
        self._turn = 0  # the next node to be looked at, where there are many
        self._jobs: dict[str, JobState] = {}
        self._ask_at_s = 0.0

    def read(self) -> LadderState:
        plan = self._files.read(self._results / "plan.json", read_plan)
        if plan is not self._plan:
            self._plan, self._settled = plan, {}
        scales = tuple(map(self._scale, plan.jobs if plan else ()))
        records = [run.record for scale in scales for run in scale.runs if run.record]
        scales = tuple(self._followed(scale, records) for scale in scales)
        self._ask_slurm({scale.slurm_id for scale in scales if scale.slurm_id is not None})
        return LadderState(
            self._results,
            time.time(),
            plan,
            look(Lock.of_start(self._results)),
            scales,
            self._gates(scales),
            self._scale_points(scales, records),
            self._jobs,
            (*self._files.problems.values(), *filter(None, [self._silence])),
        )

    def _scale(self, job: ScaleJob) -> ScaleState:
        scale = str(job.scale)
        holder = living(Lock.of_scale(self._results, scale, ""))
        runs = [self._run(spec, holder) for spec in job.runs]
        further = [run for spec in job.more if (run := self._run(spec, holder)).phase != "to do"]
        end = self._files.read(job_end_file(self._results, scale), lambda _: read_job_end(self._results, scale))
        return ScaleState(job, (*runs, *further), end, holder)

    def _run(self, spec: RunSpec, holder: Holder | None) -> RunState:
        if spec.name in self._settled and holder is None:  # a job may measure it again
            return self._settled[spec.name]
        directory = self._directory(spec)
        record = self._files.read(directory.record, read_record)
        if record is not None and record.spec_hash == spec.hash:
            self._settled[spec.name] = RunState(spec, "ended", record)
            return self._settled[spec.name]
        run = self._files.read(directory.run, lambda _: read_run_file(directory))
        if run is None or run.spec_hash != spec.hash:
            return RunState(spec)
        if directory.ended.exists():
            return RunState(spec, "ended", self._files.read(directory.assembled, read_record))  # until its job ends
        is_own = holder is not None and holder.job_id == run.job.id
        return RunState(spec, "started" if is_own else "interrupted", file=run)

    def _followed(self, scale: ScaleState, records: Collection[Record]) -> ScaleState:
        """Return a scale with the progress of the run that goes on. records: show how many steps it will make."""
        run = scale.running
        if run is None or run.file is None:
            return scale
        directory = self._directory(run.spec)
        self._look_at_nodes(run.file, directory)
        progress = self._files.read(directory.progress, read_progress)
        expected = expected_steps(run.spec, records)
        followed = replace(run, progress=progress, expected=expected, samples=self._samples[run.spec.name][1])
        return replace(scale, runs=tuple(followed if other is run else other for other in scale.runs))

    def _look_at_nodes(self, run: RunFile, directory: RunDirectory) -> None:
        """Read the last samples of a run's nodes: of many the least busy ones, and of the rest some more each time."""
        job, known = self._samples.get(run.spec.name, (run.job, {}))
        known = known if job == run.job else {}
        self._samples[run.spec.name] = run.job, known
        nodes = {node: k for k, node in enumerate(run.nodes)}
        looked_at = list(nodes)
        if len(nodes) > MOST_NODES:
            least = sorted(known, key=lambda node: busy(known[node]))[: MOST_NODES // 2]
            looked_at = [*least, *itertools.islice(itertools.cycle(nodes), self._turn, self._turn + MOST_NODES // 2)]
            self._turn = (self._turn + MOST_NODES // 2) % len(nodes)
        for node in dict.fromkeys(looked_at):
            if sample := self._files.read(directory.samples(nodes[node]), last_sample):
                known[node] = sample

    def _gates(self, scales: Collection[ScaleState]) -> dict[str, Verdict]:
        """Return the gates of stages whose runs have all ended; others are of earlier runs."""
        gates = {}
        for stage in self._plan.stages if self._plan else ():
            if all(scale.is_done for scale in scales if scale.job.stage == stage):
                for file in gate_files(self._results / "gates", stage):
                    if verdict := self._files.read(file, partial(read_as, Verdict)):
                        gates[stage] = verdict
        return gates

    def _scale_points(self, scales: Collection[ScaleState], records: Collection[Record]) -> tuple[ScalePoint, ...]:
        """Return the points of the scaling, made again when there is another record."""
        known = [id(record) for record in records]
        if self._plan is not None and self._points[0] != known:
            by_name = {record.spec.name: record for record in records}
            specs = [run.spec for scale in scales for run in scale.runs]
            self._points = known, scale_points(specs, by_name, self._plan.may_differ, self._plan.gates)
        return self._points[1]

    def _ask_slurm(self, job_ids: Collection[str]) -> None:
        """Ask for all jobs at once, by their ids, so that they may be anyone's."""
        if job_ids and monotonic() < self._ask_at_s:
            return
        self._silence = ""
        self._ask_at_s = monotonic() + ASK_EVERY_S
        try:
            self._jobs = ask(job_ids, ANSWER_WITHIN_S)
        except SlurmError as error:
            self._ask_at_s += SILENT_EVERY_S - ASK_EVERY_S
            why = " ".join(str(error).split())
            self._silence = f"Slurm does not answer ({why}); asked again in {SILENT_EVERY_S:.0f} s"

    def _directory(self, spec: RunSpec) -> RunDirectory:
        return RunDirectory(self._results / "runs" / spec.name)


def busy(sample: Mapping[str, float]) -> float:
    """Return how busy a node's GPUs are, or without any its CPUs."""
    gpus = of_gpus(sample, "busy_fraction")
    return sum(gpus) / len(gpus) if gpus else sample.get("cpu_fraction", 0.0)


# --- What goes on in a chain of production at one time: its directory, as a ladder of one scale, and its links.


@dataclass(frozen=True)
class ChainState:
    """A chain at one time."""

    chain: Chain
    state: LadderState  # of its directory: the one scale, its job and the run that goes on
    links: tuple[Link, ...]
    window: WindowRow | None  # the last one of the link that goes on

    @property
    def scale(self) -> ScaleState:
        return self.state.scales[0]

    @property
    def running(self) -> RunState | None:
        return self.scale.running

    @property
    def expected_end_s(self) -> float | None:
        """Return when the training will be complete (unix time); None if that is not known."""
        batch = self.scale.job.runs[0].global_batch
        return expected_end_s(self.chain, self.links, self.state.now_s, batch)


class ChainReader:
    """The reader of the chain in a ladder's results. ``read`` may be called at any rate."""

    def __init__(self, results: Path) -> None:
        self._directory = chain_directory(results)
        self._reader, self._files = Reader(self._directory), ChangedFiles()

    def read(self) -> ChainState | None:
        """Read what may have changed; return None without a chain."""
        chain = self._files.read(self._directory / CHAIN_FILE, partial(read_as, Chain))
        state = self._reader.read() if chain is not None else None
        if chain is None or state is None or state.plan is None:
            return None
        holder = state.scales[0].holder
        links = read_links(self._directory, state.plan, state.now_s, holder.job_id if holder else None)
        links = tuple(self._with_now(link, state) for link in links)
        window = self._files.read(self._directory / TABLE, last_window)
        is_current = window is not None and links and links[-1].end == "running" and window.link == links[-1].number
        return ChainState(chain, state, links, window if is_current else None)

    @staticmethod
    def _with_now(link: Link, state: LadderState) -> Link:
        """Return a link with what has changed since: the hours and the steps of the one that goes on."""
        if link.end != "running":
            return link
        scale = state.scales[0]
        hours = max(0.0, state.now_s - link.begun_at_s) / HOUR_S * link.gpus
        progress = scale.running.progress if scale.running else None
        return link.replace(hours=hours, steps=progress.step if progress else 0)
