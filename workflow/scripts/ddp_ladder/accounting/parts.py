"""What a job did when, from its own files: its preflight, and of each of its runs the start-up and the training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ddp_ladder.accounting.sampled import Sums, sums_of
from ddp_ladder.common.files import RunDirectory, read_json
from ddp_ladder.preflight.directory import PreflightDirectory
from ddp_ladder.preflight.raw_models import PreflightEnd
from ddp_ladder.preflight.result import result_file
from ddp_ladder.records.assemble import assemble
from ddp_ladder.records.raw_files import RankFiles, RawRun, read_raw_run
from ddp_ladder.records.raw_models import RunEnd, read_run_file
from ddp_ladder.records.used import read_node_samples

Span = tuple[float, float]
"""Begin and end, unix times."""

TOLERANCE_S = 1.0  # times are rounded
OF_A_FILE_S = 60.0  # the clock of a file server may differ from the job's


@dataclass(frozen=True)
class RunPart:
    """One run in a job. startup_s: from its launch to the end of the first step. is_whole: it came to its end."""

    wall_s: float
    startup_s: float = 0.0
    training_s: float = 0.0
    samples: int = 0  # of all ranks
    measured_samples: float = 0.0  # those of the measured training
    is_whole: bool = False
    is_ok: bool = False
    is_plain: bool = False
    sums: Sums = field(default_factory=Sums)


@dataclass(frozen=True)
class Parts:
    """The parts of a job's time, in seconds."""

    preflight_s: float = 0.0
    runs: Sequence[RunPart] = ()

    @property
    def startup_s(self) -> float:
        return sum(run.startup_s for run in self.runs)

    @property
    def training_s(self) -> float:
        return sum(run.training_s for run in self.runs)

    @property
    def runs_s(self) -> float:
        return sum(run.wall_s for run in self.runs)


def parts_of(results: Path, scale: str, job_id: str, window: Span) -> Parts:
    """Return the parts of a job. window: its begin and end; several starts in one allocation have the same job id."""
    return Parts(_preflight_s(results, scale, job_id, window), tuple(_runs(results, scale, job_id, window)))


def _preflight_s(results: Path, scale: str, job_id: str, window: Span) -> float:
    directory = PreflightDirectory(result_file(results, scale).with_suffix(""))
    try:
        end = PreflightEnd.from_json(read_json(directory.ended))
    except FileNotFoundError:
        return _unended_s(directory, job_id, window)
    except (OSError, ValueError):
        return 0.0
    return end.ended_at_s - end.started_at_s if end.job.id == job_id and _is_in(end.started_at_s, window) else 0.0


def _runs(results: Path, scale: str, job_id: str, window: Span) -> Iterator[RunPart]:
    """Yield the runs that this job has begun, also those that a later attempt has set aside."""
    for path in sorted((results / "runs").glob(f"*/*/{scale}/r*")):
        for directory in (*sorted(path.glob("attempts/*")), path):
            with suppress(OSError, ValueError):
                if part := _run(RunDirectory(directory), job_id, window):
                    yield part


def _run(directory: RunDirectory, job_id: str, window: Span) -> RunPart | None:
    if read_run_file(directory).job.id != job_id:
        return None
    raw = read_raw_run(directory)
    if raw.ended is None:
        wall_s = _unended_s(directory, job_id, window)
        return RunPart(wall_s) if wall_s > 0 else None
    if not _is_in(raw.ended.started_at_s, window):
        return None
    training = _training(raw, raw.ended)
    training_s = training[1] - training[0] if training else 0.0
    record, samples = assemble(directory), sum(int(rank.steps.samples.sum()) for rank in raw.ranks.values())
    steps = max((len(rank.steps) for rank in raw.ranks.values()), default=0)
    nodes = read_node_samples(raw, directory, [])
    return RunPart(
        wall_s=raw.ended.wall_s,
        startup_s=training[0] - raw.ended.started_at_s if training else 0.0,
        training_s=training_s,
        samples=samples,
        measured_samples=samples * record.timing.measured_steps / steps if record.timing and steps else 0.0,
        is_whole=raw.ended.outcome == "finished",
        is_plain=raw.run.spec.is_plain,
        is_ok=record.status == "ok",
        sums=sums_of(record.usage, nodes.values(), training_s) if len(nodes) == len(raw.run.nodes) else Sums(),
    )


def _training(raw: RawRun, ended: RunEnd) -> Span | None:
    """Return when the slowest rank began to train and the last one ended; None if the ranks do not tell."""
    ends = [rank.end for rank in raw.ranks.values()]
    begins = [rank.end.ended_at_s - trained_s for rank in raw.ranks.values() if (trained_s := _trained_s(rank))]
    if not begins:
        return None
    # The nodes' clocks may differ a little from the job's.
    begin = min(max(max(begins), ended.started_at_s), ended.ended_at_s)
    return begin, min(max(max(end.ended_at_s for end in ends), begin), ended.ended_at_s)


def _trained_s(rank: RankFiles) -> float | None:
    """Return the time of a rank's training; of its steps alone if the program itself reported them."""
    steps_s = float(rank.steps.step_time_s.sum())
    return steps_s or None if rank.end.training_s is None else rank.end.training_s


def _unended_s(directory: RunDirectory, job_id: str, window: Span) -> float:
    """Return the time from the begin of a run or a preflight to the end of the job that was killed under it."""
    try:
        if read_json(directory.run)["job"]["id"] != job_id:
            return 0.0
        begun_s = directory.run.stat().st_mtime
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0
    return max(0.0, window[1] - begun_s) if _is_in(begun_s, window, OF_A_FILE_S) else 0.0


def _is_in(at_s: float, window: Span, tolerance_s: float = TOLERANCE_S) -> bool:
    begin, end = window
    return begin - tolerance_s <= at_s <= end + tolerance_s
