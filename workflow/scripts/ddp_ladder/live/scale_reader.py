"""The files of one scale: its job, its lock, and its runs. A run that has ended is read once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from ddp_ladder.common.files import RunDirectory
from ddp_ladder.live.files import Files
from ddp_ladder.live.samples import NodeSample, last_sample
from ddp_ladder.live.state import RunState, ScaleState
from ddp_ladder.plan.plan import RunSpec, ScaleJob
from ddp_ladder.preflight.result import PreflightResult, read_result, result_file
from ddp_ladder.records.assemble import assemble
from ddp_ladder.records.raw_models import RunFile, read_run_file
from ddp_ladder.records.record import Record, read_record
from ddp_ladder.run.expected_steps import Expected, most_alike
from ddp_ladder.run.progress import epoch_steps, read_progress
from ddp_ladder.slurm.job_end import JobEnd, job_end_file, read_job_end
from ddp_ladder.slurm.scale_lock import Holder, newest_lock, read_lock

Place = tuple[str, int]  # run_id and a node's rank
SILENT_AFTER_S = 120.0  # a lock is touched every few seconds; clocks differ, and network file systems cache


class ScaleReader:
    """The reader of one scale. ``scan`` looks at everything, ``follow`` only at the run that goes on."""

    def __init__(self, results: Path, job: ScaleJob, files: Files) -> None:
        self._results = results
        self._job = job
        self._files = files
        self._run_files: dict[str, RunFile] = {}
        self._assembled: dict[str, Record | None] = {}  # by run_id; None: the raw files give none
        self._samples: dict[Place, NodeSample] = {}
        self._expected = Expected(job.runs[0])  # of the run that goes on
        self.state = ScaleState(job, tuple(RunState(spec) for spec in job.runs))

    @property
    def is_settled(self) -> bool:
        """Return True if nothing more is expected: every run has its record, and no job holds the scale."""
        return all(run.record is not None for run in self.state.runs) and not self.state.is_held

    def scan(self, names: Collection[str], now_s: float) -> None:
        """Look at the job, the lock and all runs. names: those in results/jobs."""
        holder, is_alive = self._holder(names, now_s)
        further = [run for spec in self._job.more if (run := self._look(spec, holder)).phase != "to do"]
        runs = (*(self._look(spec, holder) for spec in self._job.runs), *further)
        self.state = ScaleState(self._job, runs, self._end(names), holder, is_alive, self._preflight())

    def follow(self, finished: Sequence[Record]) -> bool:
        """Read the progress of the run that goes on; return False if the scale has to be scanned.

        finished: records of other runs, which show how many steps it will make.
        """
        run = self.state.running
        if run is None:
            return not self.state.is_held
        directory = self._directory(run.spec)
        names = self._files.names(directory.path)
        if directory.ended.name in names or directory.run.name not in names:
            return False
        progress = self._files.parsed(directory.progress, read_progress)
        expected = self._steps_of(run.spec, finished)
        self._change(replace(run, progress=progress, expected=expected, samples=self._known_samples()))
        return True

    def _known_samples(self) -> tuple[NodeSample, ...]:
        known = (self._samples.get(place) for place in self.places)
        return tuple(sample for sample in known if sample is not None)

    @property
    def places(self) -> list[Place]:
        """The nodes of the run that goes on."""
        run = self.state.running
        file = None if run is None else self._run_files[run.spec.name]
        return [] if file is None else [(file.job.run_id, k) for k in range(len(file.nodes))]

    def sample(self, place: Place) -> None:
        """Read the last sample of a node of the run that goes on."""
        run, (_, node_rank) = self.state.running, place
        if run is None or place not in self.places:
            return
        node = self._run_files[run.spec.name].nodes[node_rank]
        path = self._directory(run.spec).samples(node_rank)
        found = self._files.read(path, lambda file: last_sample(file, node))
        if found is not None:
            self._samples[place] = found
        self._change(replace(run, samples=self._known_samples()))

    def assemble_one(self) -> bool:
        """Assemble the record of an ended run whose job has not written it yet; return False if there is none."""
        for run in self.state.runs:
            run_id = self._run_files[run.spec.name].job.run_id if run.phase == "ended" and run.record is None else None
            if run_id is not None and run_id not in self._assembled:
                try:
                    self._assembled[run_id] = assemble(self._directory(run.spec))
                except (OSError, ValueError):
                    self._assembled[run_id] = None
                self._change(replace(run, record=self._assembled[run_id]))
                return True
        return False

    def _directory(self, spec: RunSpec) -> RunDirectory:
        return RunDirectory(self._results / "runs" / spec.name)

    def _change(self, new: RunState) -> None:
        runs = tuple(new if run.spec == new.spec else run for run in self.state.runs)
        self.state = replace(self.state, runs=runs)

    def _look(self, spec: RunSpec, holder: Holder | None) -> RunState:
        directory = self._directory(spec)
        names = self._files.names(directory.path)
        if directory.record.name in names:
            record = self._files.parsed(directory.record, read_record)
            if record is not None and record.spec_hash == spec.hash:
                return RunState(spec, "ended", record)
        run = None
        if directory.run.name in names:
            run = self._files.parsed(directory.run, lambda _: read_run_file(directory))
        if run is None or run.spec_hash != spec.hash:
            return RunState(spec)
        self._run_files[spec.name] = run
        if directory.ended.name in names:
            return RunState(spec, "ended", self._assembled.get(run.job.run_id))
        is_own = holder is not None and not holder.ended and holder.job_id == run.job.id
        return RunState(spec, "started" if is_own else "interrupted")

    def _end(self, names: Collection[str]) -> JobEnd | None:
        file = job_end_file(self._results, str(self._job.scale))
        if file.name not in names:
            return None
        return self._files.parsed(file, lambda _: read_job_end(self._results, str(self._job.scale)))

    def _holder(self, names: Collection[str], now_s: float) -> tuple[Holder | None, bool | None]:
        newest = newest_lock(names, str(self._job.scale))
        found = None if newest is None else self._files.parsed(self._results / "jobs" / newest, read_lock)
        if found is None:
            return None, None
        holder, beat_s = found
        alive = holder.process.is_alive()
        if alive is None and now_s - beat_s > SILENT_AFTER_S:
            alive = False
        return holder, alive

    def _preflight(self) -> PreflightResult | None:
        if not self._job.preflight.enabled:
            return None
        return self._files.parsed(result_file(self._results, self._job.scale), read_result)

    def _steps_of(self, spec: RunSpec, finished: Sequence[Record]) -> Expected:
        other = most_alike(spec, finished)
        if self._expected.spec != spec or self._expected.other is not other:
            epoch = None if other is None else epoch_steps(self._directory(other.spec))
            self._expected = Expected(spec, other, epoch)
        return self._expected
