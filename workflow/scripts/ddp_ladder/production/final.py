"""What a chain of production used, and for what: hours, energy, throughput, queue, failures and checkpoints.

Each second that a link held its nodes is in one part. What was trained after the last save of a link that did not end
in order is lost: the next link makes it again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.analysis.decisions import kwh
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.common.formats import count
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.ledger.entries import HOUR_S
from ddp_ladder.ledger.jobs import JobFile, JobRow, job_files
from ddp_ladder.measuring.node_usage import read_node_samples
from ddp_ladder.nodes.usage import energy_of_gpus_j
from ddp_ladder.plan.plan import Hours, RunSpec, ScaleJob, Units
from ddp_ladder.production.chain import Chain, Link, chain_directory, completed, read_chain, read_chain_plan, read_links
from ddp_ladder.production.planned import Planned, read_planned
from ddp_ladder.production.slower import TABLE, read_windows
from ddp_ladder.records.raw_files import RankFiles, RawRun, read_raw_run
from ddp_ladder.records.raw_models import read_run_file
from ddp_ladder.records.record import Record, Saves
from ddp_ladder.slurm.lock import Lock, look

PREFLIGHT, STARTUP, TRAINING, CHECKPOINTS = "preflight", "start-up", "training", "checkpoints"
FAILURES, REST = "failures", "rest"
PARTS: Mapping[str, str] = {
    TRAINING: "steps that the training kept, with validations",
    CHECKPOINTS: "in which the training waited for a save",
    STARTUP: "launcher and set-up, imports, until the end of the first step",
    PREFLIGHT: "test of the nodes before the script starts",
    FAILURES: "after the last save of a link that failed or reached its time limit, and what a script began anew",
    REST: "end of the script, and what is in no run of a link",
}
"""The parts of the time that links held their nodes, with what each has."""
UNKEPT = ("failed", "time limit")  # ends after which the next link begins at the last save
CERTAIN = 0.95
ROUNDED_S = 1e-3  # of the ends of steps

Figures = NDArray[np.float64]
Start = tuple[RawRun, Record]


@dataclass(frozen=True)
class Kept:
    """What the next link, or the result, has of a link's training."""

    seconds: float  # from the end of the first step, without saves
    saving_s: float
    samples: float


@dataclass(frozen=True)
class LinkUse:
    """One link with what it used. None: not known."""

    link: Link
    elapsed_s: float
    hours: Hours
    queue_wait_s: float | None
    parts_s: Mapping[str, float]  # PARTS, which add up to elapsed_s; empty: not known, or it goes on
    kept: Kept | None
    saves: Saves | None
    gpu_energy_j: float | None

    @property
    def has_ended(self) -> bool:
        return self.link.end != "running"


@dataclass(frozen=True)
class Held:
    """The throughput that was held, in samples/s of all ranks; None: not known."""

    median: float | None = None  # of the time in steps
    worst_hour: float | None = None  # the lowest mean of an hour within a link
    doubt: str = ""  # what of the table of windows cannot be read


@dataclass(frozen=True)
class Campaign:
    """A chain, with all that its final report shows."""

    chain: Chain
    job: ScaleJob
    site: str
    links: tuple[LinkUse, ...]
    held: Held
    planned: Planned | None  # the application's milestones
    units: Units
    now_s: float

    @property
    def ended(self) -> tuple[LinkUse, ...]:
        return tuple(each for each in self.links if each.has_ended)

    @property
    def is_complete(self) -> bool:
        return completed([each.link for each in self.links]) is not None

    @property
    def used(self) -> Hours:
        """Return the hours that all links held."""
        return sum((each.hours for each in self.links), Hours(0.0, 0.0))

    @property
    def held_s(self) -> float:
        """Return the seconds that links which have ended held their nodes."""
        return math.fsum(each.elapsed_s for each in self.ended)

    @cached_property
    def parts_s(self) -> dict[str, float]:
        """Return the seconds of each part, of the links that know them."""
        return {part: math.fsum(each.parts_s.get(part, 0.0) for each in self.ended) for part in PARTS}

    @property
    def samples(self) -> float | None:
        """Return the samples that the training kept; None if no link knows them."""
        return known_sum(each.kept.samples for each in self.ended if each.kept)

    @property
    def samples_per_s(self) -> float | None:
        """Return the mean rate of the training that was kept, with validations."""
        seconds = math.fsum(each.kept.seconds for each in self.ended if each.kept)
        return None if self.samples is None or not seconds else self.samples / seconds

    @property
    def training_share(self) -> float | None:
        """Return which share of the held time is training that was kept."""
        known = any(each.kept for each in self.ended) and self.held_s > 0
        return self.parts_s[TRAINING] / self.held_s if known else None

    @property
    def efficiency(self) -> float | None:
        """Return the share of training x its rate against the ladder's: 1 if each held second trained as promised."""
        promised = self.chain.promised_samples_per_s
        return self.samples / promised / self.held_s if promised and self.held_s and self.samples is not None else None

    @property
    def without_kept(self) -> tuple[LinkUse, ...]:
        """Return the links of which nothing says what the training kept: shares and sums are too low by theirs."""
        return tuple(each for each in self.ended if each.kept is None)

    @property
    def gpu_energy_kwh(self) -> float | None:
        """Return the energy of the links that know theirs."""
        return kwh(known_sum(each.gpu_energy_j for each in self.links))

    @property
    def queue_wait_s(self) -> float | None:
        """Return the time in the queue of the links of which Slurm reports it."""
        return known_sum(each.queue_wait_s for each in self.links)

    @property
    def failures(self) -> int:
        """Return the links that failed; one that a person ended has not."""
        return sum(each.link.end == "failed" and not each.link.is_ended_by_person for each in self.ended)

    @cached_property
    def checkpoints(self) -> Checkpoints:
        known = [each for each in self.ended if each.saves]
        saves = [each.saves for each in known if each.saves]
        sizes = [each.bytes for each in saves]
        return Checkpoints(
            count=sum(each.count for each in saves) if saves else None,
            seconds=known_sum(each.seconds for each in saves),
            bytes=None if None in sizes or not sizes else sum(filter(None, sizes)),
            training_s=math.fsum(each.parts_s[part] for each in known for part in (TRAINING, CHECKPOINTS)),
            failures=self.failures,
            held_s=self.held_s,
        )


@dataclass(frozen=True)
class Checkpoints:
    """The saves of the links that know theirs, and the interval to choose by what they took. Pure."""

    count: int | None
    seconds: float | None  # that the training waited for them
    bytes: int | None
    training_s: float  # that was kept, with the saves
    failures: int
    held_s: float

    @property
    def each_s(self) -> float | None:
        """Return the seconds of one save."""
        return self.seconds / self.count if self.count and self.seconds is not None else None

    @property
    def taken_s(self) -> float | None:
        """Return the interval that was taken."""
        return self.training_s / self.count if self.count else None

    @property
    def between_failures_s(self) -> float | None:
        """Return the mean time between failures; None without one."""
        return self.held_s / self.failures if self.failures else None

    @property
    def least_between_failures_s(self) -> float:
        """Return what it is at least if none was seen, with 95 % certainty: a rarer end would have been likely seen."""
        return self.held_s / -math.log(1 - CERTAIN)


def young_s(save_s: float, between_failures_s: float) -> float:
    """Return the training between two checkpoints that loses the least time, by Young."""
    return math.sqrt(2 * save_s * between_failures_s)


def daly_s(save_s: float, between_failures_s: float) -> float:
    """Return the same by Daly, which also holds where a save takes long against the time between failures."""
    if save_s >= 2 * between_failures_s:
        return between_failures_s
    ratio = save_s / (2 * between_failures_s)
    return young_s(save_s, between_failures_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def known_sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values; None if there is none."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


# Reading


def read_campaign(results: Path, now_s: float) -> Campaign:
    """Read a chain, also while a link runs. results: of the ladder. Raises UserError if no link has begun."""
    directory = chain_directory(results)
    chain, plan = read_chain(directory), read_chain_plan(directory)
    (job,), records = plan.jobs, RunRecords(directory)
    lock = look(Lock.of_scale(directory, chain.scale, ""))
    links = read_links(directory, plan, now_s, lock.holder.job_id if lock and lock.is_alive else None)
    if not links:
        what = "no link of production has begun: there is nothing to report"
        advice = "follow it with `snakemake production`; the first link may wait in the queue"
        raise UserError(Problem(str(directory), what, next=advice))
    files = {file.begun_at_s: file for _, file in job_files(directory)}
    return Campaign(
        chain=chain,
        job=job,
        site=plan.site,
        links=tuple(
            _use(link, following, files[link.begun_at_s], chain, _start(records, job.runs[0], link))
            for link, following in zip_longest(links, links[1:])
        ),
        held=read_held(directory / TABLE),
        planned=read_planned(results),
        units=plan.units,
        now_s=now_s,
    )


def _use(link: Link, following: Link | None, file: JobFile, chain: Chain, start: Start | None) -> LinkUse:
    """Return what a link used. start: its last one of the script; None: it made none, or goes on."""
    wall_hours = link.hours / link.gpus
    is_lost = following is not None and following.is_anew
    if link.steps == 0 or is_lost:
        kept: Kept | None = Kept(0.0, 0.0, 0.0)
    else:
        kept = kept_of(link, start, file.row) if start else None
    return LinkUse(
        link=link,
        elapsed_s=HOUR_S * wall_hours,
        hours=Hours.held(wall_hours, file.nodes, link.gpus),
        queue_wait_s=file.row.queue_wait_s if file.row else None,
        parts_s={}
        if link.end == "running"
        else parts_of(file.row, HOUR_S * wall_hours, kept, is_lost or link.end in UNKEPT),
        kept=kept,
        saves=start[1].saves if start else None,
        gpu_energy_j=_energy_j(start) if start else None,
    )


def _start(records: RunRecords, spec: RunSpec, link: Link) -> Start | None:
    """Return the raw files and the record of a link's last start."""
    last = records.directory(spec)
    for directory in (last, RunDirectory(last.attempts / str(link.attempt))):
        with suppress(OSError, ValueError):
            if read_run_file(directory).job.attempt == link.attempt:
                return read_raw_run(directory), records.stored_or_assembled(directory)
    return None


def kept_of(link: Link, start: Start, row: JobRow | None) -> Kept | None:
    """Return what was kept of a link's training; None if nothing says it.

    The times are those of the rank with the most saves. The samples of ranks without files are taken for those of the
    others, which is so in data parallel training but for the last steps.
    """
    raw, saves = start[0], start[1].saves
    known = [rank for rank in raw.ranks.values() if rank.end.phases and len(rank.steps.size)]
    known = [rank for rank in known if rank.steps.ended_at_s is not None]
    if not known:
        return None
    saver = max(known, key=lambda rank: len(_saves_s(rank)))
    until_s = math.inf
    if link.end in UNKEPT:
        if not _saves_s(saver) and not raw.has_all_ranks:
            return None  # the rank that saves may be the one that left nothing
        until_s = max((end_s for _, end_s in _saves_s(saver)), default=-math.inf)
    ends_s = saver.steps.ended_at_s
    assert ends_s is not None
    first_s, last_s = float(ends_s[0]), min(float(ends_s[-1]), until_s)
    saving_s = math.fsum(max(0.0, min(end, last_s) - max(begin, first_s)) for begin, end in _saves_s(saver))
    if link.end not in UNKEPT and row is not None and row.training_s:
        last_s = first_s + row.training_s  # of the slowest rank, with what it saved after the last step
        saving_s = saves.seconds if saves else saving_s
    seconds = max(0.0, last_s - first_s - saving_s)
    samples = math.fsum(_samples_until(rank, until_s) for rank in known) / len(known) * raw.spec.world_size
    return Kept(seconds, saving_s, samples)


def _saves_s(rank: RankFiles) -> Sequence[tuple[float, float]]:
    return rank.end.phases.saves_s if rank.end.phases else ()


def _samples_until(rank: RankFiles, until_s: float) -> float:
    """Return the samples of the steps that a rank had ended by a time; within a row its steps are equally long."""
    steps = rank.steps
    assert steps.ended_at_s is not None
    since_s = until_s + ROUNDED_S - (steps.ended_at_s - steps.step_time_s)
    ended = np.floor(np.clip(since_s / steps.step_time_s, 0.0, 1.0) * steps.size)
    return float((ended * steps.samples / steps.size).sum())


def parts_of(row: JobRow | None, elapsed_s: float, kept: Kept | None, is_unkept: bool) -> dict[str, float]:
    """Return where the time of a link went: PARTS, which add up to elapsed_s. is_unkept: its end is made again."""
    known = {
        TRAINING: kept.seconds if kept else 0.0,
        CHECKPOINTS: kept.saving_s if kept else 0.0,
        PREFLIGHT: row.preflight_s if row else 0.0,
        STARTUP: row.startup_s + row.launcher_s if row else 0.0,
    }
    if is_unkept:
        of_script_s = row.training_s + row.end_s - known[TRAINING] - known[CHECKPOINTS] if row else 0.0
        known[FAILURES] = of_script_s if row and row.training_s else math.inf  # all of a link that shows no training
    parts, left_s = dict.fromkeys(PARTS, 0.0), elapsed_s
    for part, seconds in known.items():  # Slurm rounds the whole to seconds
        parts[part] = min(max(0.0, seconds), left_s)
        left_s -= parts[part]
    return {**parts, REST: left_s}


def _energy_j(start: Start) -> float | None:
    """Return the energy of the GPUs that trained, over all samples of a link; None if one is not known."""
    raw, usage = start[0], start[1].usage
    if usage is None:
        return None
    used = {node.node_rank: {gpu.index for gpu in node.used_gpus} for node in usage.nodes}
    with suppress(OSError, ValueError):
        nodes, _ = read_node_samples(raw)
        joules = [energy_of_gpus_j(samples, used.get(node, set())) for node, samples in nodes.items()]
        return None if len(joules) < raw.spec.nodes or None in joules else known_sum(joules)
    return None


# Throughput


def read_held(path: Path) -> Held:
    """Return the throughput of the windows in the chain's table."""
    try:
        rows, damaged = read_windows(path)
    except FileNotFoundError:
        return Held()
    except OSError as error:
        return Held(doubt=f"{path.name} cannot be read: {error.strerror}")
    known = [(row, row.samples_per_s, row.steps * row.step_time_s) for row in rows if row.samples_per_s is not None]
    windows = [[row.link, row.began_at_s, row.ended_at_s, rate * in_s, in_s] for row, rate, in_s in known]
    doubt = f"{damaged} of {count(len(rows) + damaged, 'line')} of {path.name} cannot be read, and left out"
    return held_of(np.array(windows, dtype=np.float64).reshape(-1, 5), doubt=doubt * bool(damaged))


def held_of(windows: Figures, hour_s: float = HOUR_S, doubt: str = "") -> Held:
    """Return the throughput of windows, each with its link, begin, end, samples and seconds in steps. Pure."""
    if not len(windows):
        return Held(doubt=doubt)
    rates = windows[:, 3] / windows[:, 4]
    order = np.argsort(rates)
    weights = np.cumsum(windows[order, 4])
    median = float(rates[order][np.searchsorted(weights, weights[-1] / 2)])
    hours = [hour for link in np.unique(windows[:, 0]) for hour in _hours(windows[windows[:, 0] == link], hour_s)]
    return Held(median, min(hours, default=None), doubt)


def _hours(windows: Figures, hour_s: float) -> list[float]:
    """Return the mean rate of the windows from each one on that are an hour together; none for the last ones."""
    sums = np.vstack([np.zeros(2), np.cumsum(windows[:, 3:], axis=0)])
    lasts = np.searchsorted(windows[:, 2], windows[:, 1] + hour_s)
    lasts = np.maximum(lasts, np.arange(len(windows)))  # where a clock went back
    grown = [sums[last + 1] - sums[first] for first, last in enumerate(lasts) if last < len(windows)]
    return [float(samples / seconds) for samples, seconds in grown]
