"""Where every second of a run went: each has one owner, and the owners add up to the wall time. Pure.

What the ranks do between their steps comes first, and what one of them makes the others wait for. The seconds are those
of the slowest rank, which the others wait for. Times of different ranks are compared by the index of the step before
which they lie, and durations by different clocks (of the job, of the ranks' hosts) are subtracted from each other;
points in time never are: the clocks of two hosts may differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from ddp_ladder_instrument.contract import LONG_REST_S, SINGLE_ROWS
from numpy.typing import NDArray

from ddp_ladder.common.findings import Finding, remark
from ddp_ladder.common.formats import in_short, significant
from ddp_ladder.nodes.critical_rank import StepParts
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


# The owners of seconds

LAUNCHER, STARTUP, END, UNEXPLAINED = "launcher", "start-up", "end", "unexplained"
DATA, COMPUTATION, COMMUNICATION = "waiting for data", "computation", "exposed communication"
NOT_TOLD_APART, COMPILATION = "computation and communication", "compilation"
VALIDATION, SAVING, BETWEEN, BESIDE, PROFILE = "validation", "saving", "between passes", "beside steps", "profile"
OWNERS: Mapping[str, str] = {
    LAUNCHER: "before the ranks start and after they end: srun, torchrun, the software's set-up",
    STARTUP: "of a rank, until the end of its first step",
    DATA: "in steps",
    COMPUTATION: "the rest of the steps: forward and backward pass, optimizer, Python",
    COMMUNICATION: "in steps, and not hidden behind computation",
    NOT_TOLD_APART: "in the steps of ranks whose communication was not timed",
    COMPILATION: "in steps: torch.compile, which compiles anew for other shapes: pad to few shapes, or dynamic=True",
    VALIDATION: "passes over a DataLoader without a step, from model.eval() to model.train()",
    SAVING: "torch.save, torch.distributed.checkpoint",
    BETWEEN: "from a pass over the training data to the next one, such as the start of the loader's workers",
    BESIDE: "between two steps of a pass, longer than usual: validation without a DataLoader, samples, logging",
    END: "from the last step to the end of the script, without validation and saving",
    PROFILE: "the profiled steps after the training, and writing their trace",
    UNEXPLAINED: "in no step, and nothing of the above",
}
"""The owners in the order of a run, with what each has."""
NO_TRAINING = (LAUNCHER, STARTUP, END, PROFILE)
MOST_UNEXPLAINED = 0.05  # of the wall time


def saving_fraction(owners_s: Mapping[str, float]) -> float | None:
    """Return which share of the time after the start-up the run spent in saves; None if the owners are not known."""
    whole_s = sum(seconds for name, seconds in owners_s.items() if name not in (LAUNCHER, STARTUP, PROFILE))
    return owners_s.get(SAVING, 0.0) / whole_s if whole_s else None


def owners_of(raw: RawRun, step: StepParts | None) -> dict[str, float]:
    """Return the seconds of each owner; empty if the ends of the steps are not known on every rank.

    raw: after ``without_waits``, so that a wait for a rank that validates alone is in no step. step: splits the steps.
    """
    if raw.ended is None or raw.reads_log or not raw.has_all_ranks:
        return {}
    return owners_of_ranks(raw, step, raw.ended.wall_s)


def owners_of_ranks(raw: RawRun, step: StepParts | None, wall_s: float) -> dict[str, float]:
    """Return the seconds of each owner by the ranks that left files. wall_s: what the run took."""
    pauses = [pauses_of(files) for files in raw.ranks.values()]
    known = [each for each in pauses if each is not None]
    if not known or len(known) < len(pauses):
        return {}
    slowest = int(np.argmax([each.rows_s.sum() for each in known]))
    files, own = [*raw.ranks.values()][slowest], known[slowest]
    startup_s, most = _startup_s(raw, files), max(len(each.rows_s) for each in known)
    last = [_after_steps(*each) for each in zip(raw.ranks.values(), known, strict=True) if len(each[1].rows_s) == most]
    after_s, validating_s, saving_s = (max(of_ranks) for of_ranks in zip(*last, strict=True))
    profile_s = raw.profiling.took_s if raw.profiling else 0.0
    ending_s = _shares(after_s, {VALIDATION: validating_s, SAVING: saving_s, PROFILE: profile_s}, END)
    loop_s = _loop(own, known, files.end.phases.epoch_steps if files.end.phases else ())
    in_steps_s = _split(loop_s.pop(COMPUTATION), step)
    in_rank_s = startup_s + float((own.rows_s + own.idle_s).sum()) + after_s
    found = {LAUNCHER: max(0.0, wall_s - in_rank_s), STARTUP: startup_s, **in_steps_s}
    for part in (loop_s, ending_s):
        found.update({name: found.get(name, 0.0) + seconds for name, seconds in part.items()})
    return {
        name: max(0.0, found[name])
        for name in OWNERS
        if name in found and (found[name] or name not in (COMPILATION, BESIDE, PROFILE))
    }


def _startup_s(raw: RawRun, files: RankFiles) -> float:
    """Return the start-up; of a program that reports its own steps, all since its agent's start; 0 if unknown."""
    assert files.steps.ended_at_s is not None
    total_s = files.end.startup_s.get("total")
    if total_s is not None:
        return total_s
    node = raw.node_rank(files.end)
    begun = (end.launched_at_s for agent, end in raw.agents.items() if agent.node_rank == node)
    first_s = float(files.steps.ended_at_s[0])
    return max(0.0, first_s - next(begun, first_s))


def _after_steps(files: RankFiles, own: Pauses) -> tuple[float, float, float]:
    """Return how long a rank went on after its last step, also on a GPU that was behind, and validated, and saved."""
    phases, ends_s = files.end.phases, files.steps.ended_at_s
    assert ends_s is not None
    ended_s = float(ends_s[0] + (own.rows_s + own.idle_s).sum())
    edges_s = np.array([ended_s, max(ended_s, files.end.ended_at_s)])
    passes_s, saves_s = (phases.passes_s, phases.saves_s) if phases else ((), ())
    validating_s, both_s = (float(covered_s(edges_s, spans).sum()) for spans in (passes_s, (*passes_s, *saves_s)))
    return float(edges_s[1] - ended_s), validating_s, both_s - validating_s


def _shares(whole_s: float, parts_s: Mapping[str, float], rest: str) -> dict[str, float]:
    """Return the parts, as far as they fit into the whole, and the rest of it."""
    found = {}
    for name, part_s in parts_s.items():
        found[name] = min(part_s, whole_s)
        whole_s -= found[name]
    return {**found, rest: whole_s}


def _loop(own: Pauses, ranks: Sequence[Pauses], epoch_steps: Sequence[int]) -> dict[str, float]:
    """Return the owners of the time from the end of the first step to that of the last one; steps: COMPUTATION.

    What any rank validates or saves, the others wait for. Inside a step it is known only as far as that step is longer
    than usual: a save in the background costs nothing, and a step that compiles computes, too.
    """
    validating_s, saving_s, compiling_s, resting_s = (
        _longest([getattr(each, name) for each in ranks], len(own.rows_s))
        for name in ("validating_s", "saving_s", "compiling_s", "beside_s")
    )
    is_calm = (validating_s + saving_s + compiling_s) == 0
    room_s = np.maximum(own.rows_s - usual_s(own.rows_s, own.size, is_calm), 0.0)
    beside = [np.minimum(validating_s, own.idle_s)]
    beside.append(np.minimum(saving_s, own.idle_s - beside[0]))
    inside = [np.minimum(validating_s - beside[0], room_s)]
    inside.append(np.minimum(saving_s - beside[1], room_s - inside[0]))
    inside.append(np.minimum(compiling_s, room_s - inside[0] - inside[1]))
    rest_s = own.idle_s - beside[0] - beside[1]
    resting_s = np.minimum(rest_s, resting_s)
    later = [step for step in epoch_steps if step > 1]
    between = np.isin(np.arange(len(rest_s)), np.searchsorted(1 + np.cumsum(own.size), later))
    return {
        COMPUTATION: float((own.rows_s - inside[0] - inside[1] - inside[2]).sum()),
        COMPILATION: float(inside[2].sum()),
        VALIDATION: float((beside[0] + inside[0]).sum()),
        SAVING: float((beside[1] + inside[1]).sum()),
        BETWEEN: float(rest_s[between].sum()),
        BESIDE: float(resting_s[~between].sum()),
        UNEXPLAINED: float((rest_s - resting_s)[~between].sum()),
    }


def _longest(of_ranks: Sequence[Array], steps: int) -> Array:
    """Return the largest value of any rank for each of so many steps; ranks may have other numbers of them."""
    longest = np.zeros(steps)
    for of_rank in of_ranks:
        shared = min(steps, len(of_rank))
        longest[:shared] = np.maximum(longest[:shared], of_rank[:shared])
    return longest


def _split(steps_s: float, step: StepParts | None) -> dict[str, float]:
    """Split the time of all steps as the mean measured step is split along its critical rank."""
    if step is None or not step.step_s:
        return {NOT_TOLD_APART: steps_s}
    scale = steps_s / step.step_s
    data_s = scale * (step.data_wait_s + (step.imbalance_data_s or 0.0))
    if step.exposed_comm_s is None:
        return _shares(steps_s, {DATA: data_s}, NOT_TOLD_APART)
    return _shares(steps_s, {DATA: data_s, COMMUNICATION: scale * step.exposed_comm_s}, COMPUTATION)


def remark_on_owners(owners_s: Mapping[str, float]) -> Iterator[Finding]:
    """Yield a remark if too much of the wall time has no known owner."""
    wall_s, unexplained_s = sum(owners_s.values()), owners_s.get(UNEXPLAINED, 0.0)
    if unexplained_s > MOST_UNEXPLAINED * wall_s:
        yield remark(
            "unexplained",
            f"{significant(unexplained_s)} s of {significant(wall_s)} s are unexplained (in no step, and neither "
            "validation, saving nor between passes): the figure is doubtful",
            "look at what the script does between its steps: if it is part of the training, only samples / time "
            "of the whole loop holds",
        )
