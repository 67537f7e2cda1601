"""What a chain of production used, and for what: hours, energy, throughput, queue, failures and checkpoints.

Each second that a link held its nodes is in one part. What was trained after the last save of a link that did not end
in order is lost: the next link makes it again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.analysis.decisions import kwh
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.common.formats import count
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.ledger import entries
from ddp_ladder.ledger.entries import ALL_OWNERS, HOUR_S, IDLE, MADE_AGAIN, PREFLIGHT, WITNESS, Ledger, RunShare
from ddp_ladder.ledger.jobs import JobFile, RunStart, begun_at, job_files, ledger_of, starts_of
from ddp_ladder.ledger.kept import Later, share_of
from ddp_ladder.measuring.node_usage import read_node_samples
from ddp_ladder.measuring.owners import END, LAUNCHER, PROFILE, SAVING, STARTUP
from ddp_ladder.nodes.usage import energy_of_gpus_j
from ddp_ladder.plan.plan import Hours, ScaleJob, Units
from ddp_ladder.production.chain import Chain, Link, chain_directory, completed, read_chain, read_chain_plan, read_links
from ddp_ladder.production.plan import Planned, read_planned
from ddp_ladder.production.slower import TABLE, read_windows
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.record import Record, Saves
from ddp_ladder.slurm.lock import Lock, look

TRAINING, CHECKPOINTS, REST = "training", "checkpoints", "rest"
PARTS: Mapping[str, tuple[tuple[str, ...], str]] = {
    TRAINING: (
        tuple(owner for owner in entries.TRAINING if owner != SAVING),
        "steps that the training kept, with validations",
    ),
    CHECKPOINTS: ((SAVING,), "in which the training waited for a save"),
    STARTUP: ((LAUNCHER, STARTUP), "launcher and set-up, imports, until the end of the first step"),
    PREFLIGHT: ((PREFLIGHT,), ALL_OWNERS[PREFLIGHT]),
    MADE_AGAIN: ((MADE_AGAIN,), "after the state from which a later link went on"),
    REST: ((WITNESS, END, PROFILE, IDLE), "end of the script, and what is in no run of a link, or not known"),
}
"""The parts of the time that links held their nodes: the owners of their seconds, and what each has."""
UNKEPT = ("failed", "time limit")  # ends after which the next link begins at the last save
CERTAIN = 0.95
Figures = NDArray[np.float64]
Kept = Mapping[RunDirectory, int | None]


@dataclass(frozen=True)
class LinkUse:
    """One link with what it used. None: not known."""

    link: Link
    hours: Hours
    queue_wait_s: float | None = None
    ledger: Ledger | None = None  # it goes on
    saves: Saves | None = None
    saving_s: float | None = None  # that the training waited for saves, also for those after what it kept
    gpu_energy_j: float | None = None

    @property
    def has_ended(self) -> bool:
        return self.link.end != "running"

    @property
    def elapsed_s(self) -> float:
        return HOUR_S * self.link.hours / self.link.gpus

    @property
    def parts_s(self) -> dict[str, float]:
        """Return the seconds of each part, which add up to those that it held its nodes; empty if it goes on."""
        return {part: self.ledger.seconds(*owners) for part, (owners, _) in PARTS.items()} if self.ledger else {}

    @property
    def samples(self) -> float | None:
        """Return what the next link, or the result, has of its samples."""
        return 0.0 if self.link.steps == 0 else self.ledger.samples if self.ledger else None


@dataclass(frozen=True)
class Held:
    """The throughput that was held, in samples/s of all ranks; None: not known."""

    median: float | None = None  # of the time in steps
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
        """Return the seconds of each part."""
        return {part: math.fsum(each.parts_s[part] for each in self.ended) for part in PARTS}

    @property
    def gpu_hours(self) -> dict[str, float]:
        """Return the hours of the GPUs that the links held, of each part."""
        ledgers = [each.ledger for each in self.ended if each.ledger]
        return {part: math.fsum(each.gpu_hours(*owners) for each in ledgers) for part, (owners, _) in PARTS.items()}

    @property
    def samples(self) -> float | None:
        """Return the samples that the training kept; None if no link knows them."""
        return known_sum(each.samples for each in self.ended)

    @property
    def samples_per_s(self) -> float | None:
        """Return the mean rate of the training that was kept, with validations."""
        return self.samples / self.parts_s[TRAINING] if self.samples is not None and self.parts_s[TRAINING] else None

    @property
    def training_share(self) -> float | None:
        """Return which share of the held time is training that was kept."""
        known = self.samples is not None and self.held_s > 0
        return self.parts_s[TRAINING] / self.held_s if known else None

    @property
    def efficiency(self) -> float | None:
        """Return the share of training x its rate against the ladder's: 1 if each held second trained as promised."""
        promised = self.chain.promised_samples_per_s
        return self.samples / promised / self.held_s if promised and self.held_s and self.samples is not None else None

    @property
    def without_kept(self) -> tuple[LinkUse, ...]:
        """Return the links of which nothing says what the training kept: shares and sums are too low by theirs."""
        return tuple(each for each in self.ended if each.samples is None)

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
            seconds=known_sum(each.saving_s for each in known),
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


def best_interval_s(save_s: float, between_failures_s: float) -> float:
    """Return the training between two checkpoints that loses the least time, by Daly."""
    if save_s >= 2 * between_failures_s:
        return between_failures_s
    ratio = save_s / (2 * between_failures_s)
    return math.sqrt(2 * save_s * between_failures_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def known_sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values; None if there is none."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


# Reading


def read_campaign(results: Path, now_s: float) -> Campaign:
    """Read a chain, also while a link runs. results: of the ladder. Raises UserError if no link has begun."""
    directory = chain_directory(results)
    chain, plan = read_chain(directory), read_chain_plan(directory)
    (job,) = plan.jobs
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
        links=_uses(directory, links, [files[link.begun_at_s] for link in links], chain.scale),
        held=read_held(directory / TABLE),
        planned=read_planned(results),
        units=plan.units,
        now_s=now_s,
    )


def _uses(directory: Path, links: Sequence[Link], files: Sequence[JobFile], scale: str) -> tuple[LinkUse, ...]:
    """Return what each link used. The last one is read first: it shows what counts of those before it."""
    records, begun, later, uses = RunRecords(directory), begun_at(directory, scale), Later(), list[LinkUse]()
    for link, file in reversed([*zip(links, files, strict=True)]):
        elapsed_s = HOUR_S * link.hours / link.gpus
        use = LinkUse(
            link, Hours.held(elapsed_s / HOUR_S, file.nodes, link.gpus), file.row.queue_wait_s if file.row else None
        )
        starts = starts_of(records, begun, file, file.ended_at_s or file.begun_at_s + elapsed_s)
        kept = dict[RunDirectory, int | None]()
        for start in reversed(starts):
            kept[start.directory] = later.kept_steps(start, in_order=link.end not in UNKEPT)
            later = later.before(start.raw)
        if use.has_ended:

            def share(start: RunStart, wall_s: float, end_s: float, kept: Kept = kept) -> RunShare:
                return share_of(start, kept[start.directory], wall_s, end_s)

            use = replace(use, ledger=ledger_of(directory, file, starts, (elapsed_s, link.gpus), share))
        if use.has_ended and starts:
            record, saves = starts[-1].record, starts[-1].record.saves
            use = replace(use, saves=saves, gpu_energy_j=_energy_j(starts[-1].raw, record))
            use = replace(use, saving_s=record.owners_s.get(SAVING, saves.seconds) if saves else None)
        uses.append(use)
    return tuple(reversed(uses))


def _energy_j(raw: RawRun, record: Record) -> float | None:
    """Return the energy of the GPUs that trained, over all samples of a link; None if one is not known."""
    if record.usage is None:
        return None
    used = {node.node_rank: {gpu.index for gpu in node.used_gpus} for node in record.usage.nodes}
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
    windows = [(row.samples_per_s, row.steps * row.step_time_s) for row in rows if row.samples_per_s is not None]
    doubt = f"{damaged} of {count(len(rows) + damaged, 'line')} of {path.name} cannot be read, and left out"
    return held_of(np.array(windows, dtype=np.float64).reshape(-1, 2), doubt * bool(damaged))


def held_of(windows: Figures, doubt: str = "") -> Held:
    """Return the throughput of windows, each with its rate and seconds in steps. Pure."""
    if not len(windows):
        return Held(doubt=doubt)
    ordered = windows[np.argsort(windows[:, 0])]
    weights = np.cumsum(ordered[:, 1])
    return Held(float(ordered[np.searchsorted(weights, weights[-1] / 2), 0]), doubt)
