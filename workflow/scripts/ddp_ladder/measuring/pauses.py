"""What the ranks do between their steps, and what one of them makes the others wait for. Pure.

Times of different ranks are compared by the index of the step before which they lie, never by their clocks: those of
two hosts may differ.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from ddp_ladder_instrument.contract import LONG_REST_S, SINGLE_ROWS
from numpy.typing import NDArray

from ddp_ladder.common.findings import Finding, remark
from ddp_ladder.common.formats import in_short, significant
from ddp_ladder.records.raw_files import RankFiles, RawRun
from ddp_ladder.records.steps import DdpTimes, Steps

Array = NDArray[np.float64]
TOO = 0.1  # of the span of the rank that is alone: a rank that validates as long as that validates, too
SHORTEST_S = 0.005  # of a validation or save that is compared: the ends of steps may be in milliseconds
ELSE = "does something else"
NOTABLE_SHARE = 0.005  # of the time of the loop that the other ranks wait


@dataclass(frozen=True)
class Pauses:
    """What lies before each step of a rank but the first, in seconds; of a block, before and in it."""

    size: NDArray[np.int64]  # steps of each row
    rows_s: Array  # the steps themselves
    idle_s: Array  # in no step
    # This and the next: what known spans cover between the ends of two rows, without the time in which a GPU still
    # worked through earlier steps; no second is in both.
    validating_s: Array
    saving_s: Array
    covered_s: Array  # by both together, on the host
    beside_s: Array  # covered by other spans that are beside the training
    compiling_s: Array  # covered by compilations, most of them in steps

    @property
    def known_s(self) -> Array:
        """Return the part of idle_s that is known to be a validation or a save."""
        return np.minimum(self.idle_s, self.validating_s + self.saving_s)


def pauses_of(rank: RankFiles) -> Pauses | None:
    """Return the pauses of a rank; None if the ends of its steps are not known."""
    steps, phases = rank.steps, rank.end.phases
    if steps.ended_at_s is None or not steps.count:
        return None
    rows_s, ends_s = steps.step_time_s[1:], steps.ended_at_s
    validations, saves, beside = (phases.passes_s, phases.saves_s, phases.beside_s) if phases else ((), (), ())
    # A GPU may be behind the host, which ends a step when it has launched it. So steps are put one after the other,
    # each not before its end on the host: what is left before them is in no step.
    in_rows_s = np.concatenate([[0.0], np.cumsum(rows_s)])
    idle_s = np.maximum.accumulate(ends_s - in_rows_s)
    behind_s = (idle_s + in_rows_s - ends_s)[:-1]
    validating_s = covered_s(ends_s, validations)
    both_s = covered_s(ends_s, (*validations, *saves)) if saves else validating_s
    return Pauses(
        steps.size[1:],
        rows_s,
        np.diff(idle_s),
        np.maximum(validating_s - behind_s, 0.0),
        np.maximum(both_s - np.maximum(validating_s, behind_s), 0.0),
        both_s,
        covered_s(ends_s, beside),
        covered_s(ends_s, phases.compiles_s if phases else ()),
    )


def without_waits(raw: RawRun) -> tuple[RawRun, tuple[Finding, ...]]:
    """Take off the ranks' steps what they waited for one that did more than they between two steps; name that rank.

    What it did (validate, save, sample, log) lies in no step of its own, and in a step of the ranks that wait. So it is
    taken off that step, as far as this is longer than the same step of the rank that did not wait; a wait for data is
    never a wait for that rank.
    """
    ranks = [*raw.ranks.values()]
    pauses = [*filter(None, map(pauses_of, ranks))]
    if len(ranks) < 2 or len(pauses) < len(ranks):
        return raw, ()
    shared = min(len(of_rank.rows_s) for of_rank in pauses)
    most_s, least_s = (reduce(edge, (each.idle_s[:shared] for each in pauses)) for edge in (np.maximum, np.minimum))
    if not (most_s - least_s >= LONG_REST_S).any() and not any(of_rank.covered_s.any() for of_rank in pauses):
        return raw, ()
    if shared and len({int(of_rank.size[shared - 1]) for of_rank in pauses}) > 1:  # a rank's last block is shorter
        shared -= 1
    rows_s = np.stack([of_rank.rows_s[:shared] for of_rank in pauses])
    known_s = np.stack([of_rank.known_s[:shared] for of_rank in pauses])
    spans_s = np.stack([(of_rank.validating_s + of_rank.saving_s)[:shared] for of_rank in pauses])
    covered_s = np.stack([of_rank.covered_s[:shared] for of_rank in pauses])
    idle_s = np.stack([of_rank.idle_s[:shared] for of_rank in pauses])
    data_s = np.stack([files.steps.data_wait_s[1 : 1 + shared] for files in ranks])
    is_known, steps = known_s.max(axis=0, initial=0.0) >= SHORTEST_S, np.arange(shared)
    alone = np.where(is_known, known_s, idle_s).argmax(axis=0)
    more_s = idle_s[alone, steps] - idle_s
    longer_s = np.minimum(rows_s - rows_s[alone, steps], rows_s - data_s)
    is_held = more_s >= np.where(is_known, SHORTEST_S, LONG_REST_S)
    waits_s = np.where(is_held, np.minimum(more_s, longer_s).clip(0.0), 0.0)
    # In eval mode, or between two passes, the others wait in no step.
    span_s = known_s[alone, steps]
    is_waiting = (covered_s <= TOO * covered_s[alone, steps]) & is_known
    idle_s = np.where(is_waiting, np.minimum((span_s - waits_s).clip(0.0), idle_s), 0.0)
    if waits_s.any():
        by_rank = zip(raw.ranks.items(), waits_s, strict=True)
        corrected = {k: replace(files, steps=_shortened(files.steps, of_rank_s)) for (k, files), of_rank_s in by_rank}
        raw = replace(raw, ranks=corrected)
    inside_s = _alone_inside(spans_s - known_s, rows_s - waits_s, pauses[0].size[:shared])
    held_s, firsts = (waits_s + idle_s).max(axis=0) + inside_s, np.where(is_known, spans_s.argmax(axis=0), alone)
    first = int(np.bincount(firsts, held_s, len(ranks)).argmax())
    of_first = (firsts == first) & (held_s > 0)
    share = float(held_s[of_first].sum() / (pauses[first].rows_s + pauses[first].idle_s).sum()) if shared else 0.0
    if share < NOTABLE_SHARE:
        return raw, ()
    of_kinds = {"validates": "validating_s", "saves": "saving_s", ELSE: "beside_s"}
    does = [kind for kind, name in of_kinds.items() if getattr(pauses[first], name)[:shared][of_first].any()]
    if not does:  # from one pass to the next
        return raw, ()
    is_inside = inside_s[of_first].sum() > held_s[of_first].sum() / 2
    return raw, (_alone(ranks[first].end.rank, does, share, is_inside=is_inside),)


def usual_s(rows_s: Array, size: NDArray[np.int64], is_calm: NDArray[np.bool_]) -> Array:
    """Return how long each row would be with the median step of the calm ones; as long as it is if there is none."""
    return np.median(rows_s[is_calm] / size[is_calm]) * size if is_calm.any() else rows_s


def _alone_inside(spans_s: Array, rows_s: Array, size: NDArray[np.int64]) -> Array:
    """Return how much longer than usual each step is on every rank because one of them validates or saves in it alone.

    spans_s, rows_s: ranks x rows, of these sizes. What goes on in the background makes no step longer.
    """
    second_s, first_s = np.partition(spans_s, len(spans_s) - 2, axis=0)[-2:]
    shortest_s = rows_s.min(axis=0)
    room_s = shortest_s - usual_s(shortest_s, size, first_s == 0)
    longer_s: Array = np.minimum(first_s - second_s, room_s).clip(0.0)
    return longer_s


def _shortened(steps: Steps, waits_s: Array) -> Steps:
    """Return the steps without these waits, which begin at the second step; the parts of the steps still fit.

    The others wait in a barrier, which is a collective, or in DDP's next exchange: in the longer one.
    """
    off_s = np.zeros(len(steps.size))
    off_s[1 : 1 + len(waits_s)] = waits_s
    rows_s, ddp_s, collectives_s = steps.step_time_s - off_s, steps.ddp_s, steps.collectives_s
    in_ddp_s = np.zeros(len(steps.size)) if ddp_s is None else np.maximum(ddp_s[:, 2] - ddp_s[:, 3], 0.0)
    if collectives_s is not None:
        is_longer = collectives_s >= np.nan_to_num(in_ddp_s)
        collectives_s = np.where(is_longer, np.maximum(collectives_s - off_s, 0.0), collectives_s)
    ddp = None
    if ddp_s is not None:
        forward_s, backward_s, comm_s, overlap_s = ddp_s.T
        too_long_s = forward_s + backward_s + in_ddp_s + (0.0 if collectives_s is None else collectives_s) - rows_s
        fitting_s = np.minimum(comm_s, np.maximum(comm_s - too_long_s, overlap_s))
        exchange_s = np.where(off_s > 0, fitting_s, comm_s)
        ddp = DdpTimes.of(np.stack([forward_s, backward_s, exchange_s, overlap_s], axis=1))
    data_wait_s = np.where(off_s > 0, np.minimum(steps.data_wait_s, rows_s), steps.data_wait_s)
    return replace(steps, step_time_s=rows_s, data_wait_s=data_wait_s, ddp=ddp, collectives_s=collectives_s)


def _alone(rank: int, does: Sequence[str], share: float, *, is_inside: bool) -> Finding:
    cures = {
        "validates": "let every rank validate a part of the data, or validate less often",
        "saves": "save less often, or while the training goes on (torch.distributed.checkpoint.async_save)",
        ELSE: "look at what only this rank does between its steps (validation, samples, logging), and do it less often",
    }
    where = "in the steps of all ranks" if is_inside else "in no step of any rank"
    return remark(
        "one rank alone",
        f"rank {rank} {' and '.join(does)} {significant(100 * share)} s of each 100 s while the others wait; this "
        f"is {where}",
        "; ".join(cures[kind] for kind in does),
    )


def in_equal_rows(raw: RawRun) -> RawRun:
    """Let the blocks of all ranks have equally many steps: a rank that made more of them has larger ones."""
    blocks = {files.steps.block for files in raw.ranks.values()}
    if len(blocks) < 2:
        return raw
    size, single = max(blocks), np.arange(SINGLE_ROWS)
    equal = {k: RankFiles(each.end, each.steps.in_blocks(size, single)) for k, each in raw.ranks.items()}
    return replace(raw, ranks=equal)


def to_shortest(raw: RawRun) -> tuple[RawRun, tuple[Finding, ...]]:
    """End the steps of all ranks where the first of them has no more, if DDP's join() allows that; say what is left.

    A rank that has no more data takes part in the exchanges of the others until all are done.
    """
    counts = {k: files.steps.count for k, files in raw.ranks.items()}
    if not joins_uneven(raw.ranks) or not raw.has_all_ranks or len({*counts.values()}) == 1 or not min(counts.values()):
        return raw, ()
    ends = [np.cumsum(files.steps.size) for files in raw.ranks.values()]
    rows = min(int((each <= min(counts.values())).sum()) for each in ends)  # of whole blocks on all ranks
    shortest = int(ends[0][rows - 1])
    later_s = [
        float(files.steps.ended_at_s[-1] - files.steps.ended_at_s[rows - 1])
        for files in raw.ranks.values()
        if files.steps.ended_at_s is not None
    ]
    cut = {k: _ended_at(files, rows, max(later_s, default=0.0)) for k, files in raw.ranks.items()}
    samples, used = (sum(int(files.steps.samples.sum()) for files in ranks.values()) for ranks in (raw.ranks, cut))
    longer = [f"{made - shortest} of rank {k}" for k, made in counts.items() if made > shortest]
    said = remark(
        "uneven inputs",
        f"the inputs are uneven (DDP's join()): the figures are of the first {shortest} steps of every rank; left "
        f"out are the steps after these ({in_short(longer, 3)}) with {100 * (1 - used / (samples or 1)):.1f} % of the "
        "samples",
        "nothing, unless many samples are left out: then divide the data more evenly",
    )
    return replace(raw, ranks=cut), (said,)


def joins_uneven(ranks: Mapping[int, RankFiles]) -> bool:
    """Return True if DDP's join() let the ranks make different numbers of steps."""
    return bool(ranks) and all(files.end.joins_uneven for files in ranks.values())


def _ended_at(files: RankFiles, rows: int, later_s: float) -> RankFiles:
    """Return the rank as if it had ended after so many rows, ``later_s`` before."""
    end = files.end
    if end.training_s is not None:
        end = end.replace(training_s=max(0.0, end.training_s - later_s))
    return RankFiles(end, files.steps.first(rows))


def covered_s(edges_s: Array, spans: Collection[tuple[float, float]]) -> Array:
    """Return how much of each interval between two edges the spans cover, in s; spans may overlap."""
    if max((end_s for _, end_s in spans), default=-np.inf) <= edges_s.min():
        return np.zeros(len(edges_s) - 1)
    ordered = np.array(sorted(spans))
    ends_s = np.maximum.accumulate(ordered[:, 1])
    begins_s = np.maximum(ordered[:, 0], np.concatenate([[-np.inf], ends_s[:-1]]))
    times_s = np.stack([begins_s, ends_s], axis=1)
    covered_s = np.cumsum(np.diff(times_s, axis=1).clip(0.0))
    before_s = np.concatenate([[0.0], covered_s[:-1]])
    return np.diff(np.interp(edges_s, times_s.ravel(), np.stack([before_s, covered_s], axis=1).ravel()))
