"""The split of a run's steps along their critical ranks, and which ranks hold up the others. Pure.

In DDP all ranks make their steps together. A rank's own work is its step without its exposed communication: its wait
for the exchange of gradients, and all other collectives, in which it may wait for slower ranks, too. The critical rank
of a step is the one with the longest own work, and a step is as long as that, plus communication that nobody hides.
Ranks are compared step by step, so the same steps must be timed on all of them. Docs:
docs/attribution.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from ddp_ladder_instrument.contract import BUFFERS, SYNC_BATCH_NORM
from numpy.typing import NDArray
from pydantic import Field

from ddp_ladder.common.model import Count, Model, Several
from ddp_ladder.nodes.usage import Figure

Array = NDArray[np.float64]
Kind = Literal["persistent", "occasional", "varying"]

IN_PASSES = (BUFFERS, SYNC_BATCH_NORM)  # DDP's forward and backward times include them
IN_MOST_STEPS = 0.9  # calls in a step, in the mean
LEAST_TIMED_STEPS = 5  # fewer steps show what happened in them by chance
WINDOW_STEPS = 16  # the work of a rank may grow during a run; within so few steps it does not
USUAL_SPREAD = 0.3  # of how far the mean work is above the usual work; exponential times have 0.5
SLOW_STEP = 1.5  # of the median step: such steps are a stratum of their own
MOST_STEPS = 0.4  # of the steps: a rank that is slow from half of the run on holds up somewhat fewer than half
HeldUp = tuple[Kind | None, tuple[int, ...]]
"""Whether the same ranks hold up the others, and which: imbalance_kind and slow_ranks of StepParts."""


class Exchange(Model):
    """Collectives of one name that DDP's reducer does not time: means over the steps, on the critical rank."""

    name: str = Field(description="The function of torch.distributed; or buffers, SyncBatchNorm, clip_grad_norm_.")
    calls: Figure = Field(description="In a step.")
    bytes: Figure = Field(description="In a step.")
    seconds: Figure | None = Field(description="In a step. Null: not known.")

    @property
    def is_usual(self) -> bool:
        """Return True if each step has at least one; the first ones of a run may lack some."""
        return self.calls >= IN_MOST_STEPS


class StepParts(Model):
    """Means of the run's steps, in seconds; the parts add up to step_s. Null: not told apart from the rest.

    Compute: DDP's forward and backward pass. The typical rank: docs/attribution.md.
    """

    timed_steps: Count = Field(description="Steps that DDP timed on every rank; 0: none, or it reported no times.")
    step_s: Figure
    compute_s: Figure | None = Field(description="Of the typical rank.")
    exposed_comm_s: Figure | None = Field(description="What a step takes longer than its critical rank's own work.")
    data_wait_s: Figure = Field(
        description="Of the typical rank, and what loaders that are too slow on all ranks cost the critical one."
    )
    imbalance_s: Figure = Field(description="Own work of the critical rank - own work of the typical rank.")
    imbalance_data_s: float | None = Field(description="The part of it that is a wait for data.")
    imbalance_compute_s: float | None = Field(description="The part of it that is compute.")
    comm_s: Figure | None = Field(description="Exchange of gradients on the critical rank, which waits for no other.")
    overlap_s: Figure | None = Field(description="The part of comm_s that the backward pass hides.")
    exchanges: Several[Exchange] = Field((), description="All others; their seconds are in exposed_comm_s.")
    own_max_s: Figure | None = Field(description="Own work of the critical rank.")
    imbalance_kind: Kind | None = Field(
        description="persistent: the same rank or node holds up the others in most steps; occasional: it is the same "
        "one, in fewer steps; varying: no rank does it much oftener than others. Null for one rank."
    )
    slow_ranks: Several[Count] = Field(description="The rank, or the ranks of the node; none if it varies.")
    begin_wait_fraction: Figure | None = Field(
        default=None, description="The part of all waits for workers of loaders that is in the first step of a pass."
    )


MORE_WORKERS = "give the script more loader workers (workload.args)"
AT_BEGINS = 0.5  # of the wait for data


def against_waits(begin_wait_fraction: float | None) -> str:
    """Return what to do about a wait for data: workers that are started anew for each pass are not too few."""
    if begin_wait_fraction is None or begin_wait_fraction < AT_BEGINS:
        return MORE_WORKERS
    return (
        "let the loader keep its workers from pass to pass (DataLoader(..., persistent_workers=True)): "
        f"{100 * begin_wait_fraction:.0f} % of the wait is in the first step of each pass; if they are kept, make the "
        "passes longer (several epochs in one sampler)"
    )


@dataclass(frozen=True)
class RankSteps:
    """The steps of a run that DDP timed, in seconds: arrays of ranks x steps."""

    step_s: Array
    data_wait_s: Array
    compute_s: Array | None  # None if DDP reported no times, as comm_s and overlap_s
    comm_s: Array | None
    overlap_s: Array | None
    on_gpus: bool  # the wait for data is the host's, while the GPU may still compute
    collectives_s: Array | None = None  # all others; None if not known
    of_each: Sequence[Sequence[Exchange]] = ()  # of each rank by name, in the mean of all its steps

    @property
    def exposed_s(self) -> Array | None:
        """Return the communication that nothing hides; None if it is not known."""
        if self.comm_s is None or self.overlap_s is None:
            return self.collectives_s
        exposed_s: Array = np.maximum(self.comm_s - self.overlap_s, 0.0)
        return exposed_s if self.collectives_s is None else exposed_s + self.collectives_s

    @property
    def own_compute_s(self) -> Array | None:
        """Return DDP's forward and backward pass without the collectives that are known to be in them."""
        if self.compute_s is None or self.collectives_s is None or not self.of_each:
            return self.compute_s
        within = np.array([_share(of_rank, IN_PASSES) for of_rank in self.of_each])
        own_s: Array = np.maximum(self.compute_s - within[:, None] * self.collectives_s, 0.0)
        return own_s


@dataclass(frozen=True)
class LoaderSpeeds:
    """The loaders of the ranks."""

    prefetch: bool  # they have workers, or may have
    batch_s: Sequence[float | None]  # for a batch, of each rank; None if not known

    @property
    def usual_batch_s(self) -> float | None:
        """Return the lower median over the ranks; None unless all are known."""
        known = sorted(batch_s for batch_s in self.batch_s if batch_s is not None)
        return known[(len(known) - 1) // 2] if 0 < len(known) == len(self.batch_s) else None


def step_parts(
    timed: RankSteps, all_s: Array, is_timed: NDArray[np.bool_], nodes: Sequence[int], loaders: LoaderSpeeds
) -> StepParts:
    """Return the parts of a run's mean step.

    all_s: of each measured step, its slowest rank's seconds. is_timed: which of them are in ``timed``; all of them if
    DDP reported no times. nodes: of each rank.
    """
    exposed_s, compute_of_all_s = timed.exposed_s, timed.own_compute_s
    if exposed_s is None:
        return _untimed(timed, nodes, loaders)
    weights = _weights(all_s, is_timed)
    known = compute_of_all_s is not None
    compute_of_all_s = np.zeros_like(timed.step_s) if compute_of_all_s is None else compute_of_all_s
    work = _own_work(timed, compute_of_all_s, np.maximum(timed.step_s - exposed_s, 0.0))
    own_s, waits_s, _ = work
    mean_s = float(timed.step_s.mean(axis=0) @ weights)
    critical = own_s.argmax(axis=0)
    own_max, data_max, compute_max = (_along(part, critical, weights) for part in work)
    _, slow_ranks = held_up(own_s, own_max - float(own_s.mean(axis=0) @ weights), weights, nodes)
    if slow_ranks or _has_usual(own_s):
        middle, steps = _lower_median(own_s), np.arange(len(critical))
        typical = [part[middle, steps] for part in work]
    else:
        typical = [part.mean(axis=0) for part in work]
    own, data, compute = (float(part @ weights) for part in typical)
    slow = max(0.0, data_max - data)  # what the critical rank waits longer for its data
    of_loaders = _of_loaders(data, data_max, own - data, loaders) if slow else 0.0

    def judged(part: float) -> HeldUp:
        longer_s = np.maximum(waits_s - typical[1], 0.0)
        return held_up(own_s - (part / slow if slow else 0.0) * longer_s, own_max - own - part, weights, nodes)

    kind, slow_ranks = judged(of_loaders)
    if loaders.prefetch and kind != "persistent":  # the ranks take turns: more workers, or faster ones, help
        of_loaders = slow
        kind, slow_ranks = judged(of_loaders)
    scale = min(1.0, mean_s / own_max) if own_max else 1.0  # rows of several steps may end at other moments of these
    return StepParts(
        timed_steps=timed.step_s.shape[1] if known else 0,
        step_s=mean_s,
        compute_s=scale * compute if known else None,
        exposed_comm_s=max(0.0, mean_s - own_max),
        data_wait_s=scale * (data + of_loaders),
        imbalance_s=scale * max(0.0, own_max - own - of_loaders),
        imbalance_data_s=scale * (data_max - data - of_loaders),
        imbalance_compute_s=scale * (compute_max - compute) if known else None,
        comm_s=None if timed.comm_s is None else _along(timed.comm_s, critical, weights),
        overlap_s=None if timed.overlap_s is None else _along(timed.overlap_s, critical, weights),
        exchanges=_exchanges(timed, critical, weights),
        own_max_s=scale * own_max,
        imbalance_kind=kind,
        slow_ranks=slow_ranks,
    )


def is_beside_passes(imbalance_s: float, data_s: float | None, compute_s: float | None) -> bool:
    """Return True if most of an imbalance is neither a wait for data nor compute: what the script does on this rank."""
    return data_s is not None and compute_s is not None and imbalance_s - data_s - compute_s > imbalance_s / 2


def _untimed(steps: RankSteps, nodes: Sequence[int], loaders: LoaderSpeeds) -> StepParts:
    """Return the parts of the mean step of a run whose waits for gradients are not known.

    A rank waits for slower ones at unknown places of its steps, so it is slower only if its mean step is longer.
    """
    step_s, waits_s = steps.step_s.mean(axis=1), steps.data_wait_s.mean(axis=1)
    alone, middle, most_s = len(step_s) == 1, (len(step_s) - 1) // 2, float(waits_s.max())
    typical_s, data_s = float(np.sort(step_s)[middle]), float(np.sort(waits_s)[middle])
    data_s += _of_loaders(data_s, most_s, typical_s - most_s, loaders)
    longest = int(step_s.argmax())
    longest_s = float(step_s[longest])
    kind, slow_ranks = held_up(step_s[:, None], longest_s - typical_s, np.ones(1), nodes)
    return StepParts(
        timed_steps=0,
        step_s=longest_s,
        compute_s=None,
        exposed_comm_s=0.0 if alone else None,
        data_wait_s=min(data_s, typical_s),
        imbalance_s=longest_s - typical_s,
        imbalance_data_s=None,
        imbalance_compute_s=None,
        comm_s=None,
        overlap_s=None,
        exchanges=_exchanges(steps, np.array([longest]), np.ones(1)),
        own_max_s=longest_s if alone else None,
        imbalance_kind=kind,
        slow_ranks=slow_ranks,
    )


def _exchanges(timed: RankSteps, critical: NDArray[np.intp], weights: Array) -> tuple[Exchange, ...]:
    """Return the collectives by name, the longest first: of each rank, as often as it is the critical one.

    Of the seconds, only the sum is known for single steps. In the mean of its steps a rank also waits for others, while
    the critical one does not, so they are scaled to that sum.
    """
    if not timed.of_each:
        return ()
    often = np.bincount(critical, weights=weights, minlength=len(timed.of_each))
    sums: dict[str, Array] = {}
    for of_rank, share in zip(timed.of_each, often, strict=True):
        for mean in of_rank:
            figures = np.array([mean.calls, mean.bytes, mean.seconds or 0.0])
            sums[mean.name] = sums.get(mean.name, np.zeros(3)) + share * figures
    all_s = sum(seconds for _, _, seconds in sums.values())
    scale = None
    if timed.collectives_s is not None:
        scale = min(1.0, _along(timed.collectives_s, critical, weights) / all_s) if all_s else 0.0
    exchanges = [
        Exchange(name=name, calls=calls, bytes=size, seconds=None if scale is None else scale * float(seconds))
        for name, (calls, size, seconds) in sums.items()
        if calls
    ]
    return tuple(sorted(exchanges, key=lambda exchange: (-(exchange.seconds or 0.0), -exchange.bytes)))


def _share(exchanges: Sequence[Exchange], names: Collection[str]) -> float:
    """Return the part of the seconds that is in collectives of these names."""
    all_s = sum(each.seconds or 0.0 for each in exchanges)
    return sum(each.seconds or 0.0 for each in exchanges if each.name in names) / all_s if all_s else 0.0


def _along(of_ranks_s: Array, critical: NDArray[np.intp], weights: Array) -> float:
    """Return the mean over the steps of the critical rank's value."""
    return float(of_ranks_s[critical, np.arange(len(critical))] @ weights)


def _weights(all_s: Array, is_timed: NDArray[np.bool_]) -> Array:
    """Return the weight of each timed step: slow steps, of which few are timed, weigh as much as they are of all."""
    slow = all_s > SLOW_STEP * np.median(all_s)
    weights = np.zeros(len(all_s))
    for stratum in (slow, ~slow):
        timed = stratum & is_timed
        if timed.any():
            weights[timed] = stratum.sum() / timed.sum()
    weights = weights[is_timed]
    normal: Array = weights / weights.sum()
    return normal


def _own_work(timed: RankSteps, compute_s: Array, own_s: Array) -> tuple[Array, Array, Array]:
    """Return the ranks' own work in each step, and the data wait and the compute in it."""
    compute_s = np.minimum(compute_s, own_s)
    if timed.on_gpus:  # only what the GPU does not work through
        data_wait_s = np.minimum(timed.data_wait_s, own_s - compute_s)
    else:
        data_wait_s = np.minimum(timed.data_wait_s, own_s)
        compute_s = np.minimum(compute_s, own_s - data_wait_s)
    return own_s, data_wait_s, compute_s


def _lower_median(own_s: Array) -> NDArray[np.intp]:
    """Return the rank with the lower median of own work in each step; of two ranks the faster one."""
    ranks: NDArray[np.intp] = np.argsort(own_s, axis=0, kind="stable")[(len(own_s) - 1) // 2]
    return ranks


def _has_usual(own_s: Array) -> bool:
    """Return True if at least about half of all ranks and steps need the same time, and the others more.

    Otherwise the work varies, and its mean over the ranks is what each would need if it were shared equally.
    """
    windows = np.array_split(own_s, max(1, own_s.shape[1] // WINDOW_STEPS), axis=1)
    quantiles = np.array([[*np.quantile(window, (0.05, 0.2, 0.35)), window.mean()] for window in windows])
    least, usual, most, mean = np.median(quantiles, axis=0)
    return bool(most - least <= USUAL_SPREAD * (mean - usual))


def _of_loaders(data_s: float, most_s: float, work_s: float, loaders: LoaderSpeeds) -> float:
    """Return the part of a critical rank's longer wait for data that a loader of median speed would cause, too.

    data_s, most_s: wait of the typical and of the critical rank. work_s: the rest of the typical rank's work. While
    ranks wait for the critical one, their workers catch up: the wait collects on the loader that is last. What each
    loader needs for a batch shows whether the others are faster. If that is not known, the part is all of the wait.
    """
    if not loaders.prefetch:
        return 0.0
    if loaders.usual_batch_s is None:
        return most_s - data_s
    return min(max(loaders.usual_batch_s - work_s - data_s, 0.0), most_s - data_s)


def held_up(own_s: Array, imbalance_s: float, weights: Array, nodes: Sequence[int]) -> HeldUp:
    """Judge which ranks hold up the others: without them, steps would be shorter.

    own_s: work of each rank in each step, whose mean excess over the typical rank's is imbalance_s.
    """
    if len(nodes) == 1 or imbalance_s <= 0:
        return None, ()
    for places in (range(len(nodes)), nodes):
        names, place_of = np.unique(places, return_inverse=True)
        if len(names) < 2:
            continue
        gap_s, critical = _gaps(own_s, place_of)
        means_s = np.bincount(critical, gap_s * weights, len(names))
        worst = int(means_s.argmax())
        share = float(means_s[worst] / (means_s.sum() or 1.0))
        # Half way from its share to all of it.
        if share >= (1 + 1 / len(names)) / 2 and means_s[worst] >= imbalance_s / 2:
            steps = float(((critical == worst) & (gap_s > means_s[worst] / 2)) @ weights)
            ranks = tuple(np.flatnonzero(place_of == worst).tolist())
            return "persistent" if steps >= MOST_STEPS else "occasional", ranks
    return "varying", ()


def _gaps(own_s: Array, place_of: NDArray[np.intp]) -> tuple[Array, NDArray[np.intp]]:
    """Return how much shorter each step would be without its critical place, and which that is.

    place_of: of each rank, counted from 0. A place works as long as its slowest rank. Without any other place than the
    critical one, a step would be as long as it is.
    """
    by_place = np.argsort(place_of, kind="stable")
    firsts = np.searchsorted(place_of[by_place], np.arange(place_of.max() + 1))
    longest_s = np.maximum.reduceat(own_s[by_place], firsts, axis=0)
    critical, steps = longest_s.argmax(axis=0), np.arange(own_s.shape[1])
    own_max_s = longest_s[critical, steps]
    longest_s[critical, steps] = -np.inf
    gap_s: Array = own_max_s - longest_s.max(axis=0)
    return gap_s, critical
