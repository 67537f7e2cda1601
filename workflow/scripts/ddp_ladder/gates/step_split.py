"""The split of a step by what its time is for, from the ranks' own times; its parts add up to the step exactly. Pure.

In DDP all ranks make their steps together. A rank's own work is the step without its exposed communication, that is its
wait for the exchange of gradients. The slowest rank, whose own work is the longest, waits for the network alone, and
the others wait for it too. Docs: docs/attribution.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddp_ladder.gates.groups import Good, Group
from ddp_ladder.gates.profiled import profiled_ranks
from ddp_ladder.gates.step_facts import StepFacts
from ddp_ladder.records.record import DdpTimes, Rank, Record
from ddp_ladder.usage.slow_node import LEAST_TIMED_STEPS

STEP_PARTS = ("compute_s", "exposed_comm_s", "data_wait_s", "imbalance_s", "rest_s")


@dataclass(frozen=True)
class StepSplit:
    """The parts of a step in seconds: those of the typical rank, and what it waits for. None: not told apart from rest.

    data_wait_s, compute_s: of the typical rank, the lower median by own work; compute is DDP's forward and backward
    pass. imbalance_s: what the slowest rank's own work takes longer than the typical rank's. exposed_comm_s: the
    shortest wait for gradients of all ranks. rest_s: what no figure explains: optimizer, copies, Python.
    """

    step_s: float
    data_wait_s: float | None
    compute_s: float | None
    exposed_comm_s: float | None
    imbalance_s: float | None

    @property
    def rest_s(self) -> float:
        """Return the step without the other parts."""
        parts = (self.data_wait_s, self.compute_s, self.exposed_comm_s, self.imbalance_s)
        return max(0.0, self.step_s - sum(part or 0.0 for part in parts))  # not -1e-18


@dataclass(frozen=True)
class _Times:
    """A rank's times in a step, in seconds. own_s: without its wait for gradients."""

    rank: Rank
    own_s: float
    data_wait_s: float | None
    compute_s: float | None


@dataclass(frozen=True)
class _Run:
    """The split of a run, and what it was made of."""

    split: StepSplit
    typical: Rank
    slowest: Rank
    own_s: tuple[float, ...]  # empty if not known


def split_of_repeats(group: Group) -> tuple[StepSplit, StepFacts] | None:
    """Return the split of a scale's step, and its facts: means over its good repeats; None if there are none.

    A part that a repeat does not know is not known.
    """
    runs = [found for run in group.good if (found := _split_run(run, run.step_time_s(group.statistic)))]
    if not runs or len(runs) < len(group.good):
        return None
    step_s = group.step_time_s
    splits = [run.split for run in runs]

    def part(values: Sequence[float | None]) -> float | None:
        """Return the mean of a part's fractions of each repeat's step, as a part of the scale's."""
        known = [v / split.step_s for v, split in zip(values, splits, strict=True) if v is not None]
        return step_s * sum(known) / len(known) if len(known) == len(runs) else None

    split = StepSplit(
        step_s,
        data_wait_s=part([each.data_wait_s for each in splits]),
        compute_s=part([each.compute_s for each in splits]),
        exposed_comm_s=part([each.exposed_comm_s for each in splits]),
        imbalance_s=part([each.imbalance_s for each in splits]),
    )
    first, record = runs[0], group.good[0].record
    typical = [run.typical.ddp or _NO_TIMES for run in runs]
    facts = replace(
        _settings(record),
        own_mean_s=part([sum(run.own_s) / len(run.own_s) if run.own_s else None for run in runs]),
        own_max_s=part([max(run.own_s, default=None) for run in runs]),
        comm_s=part([times.comm_s for times in typical]),
        overlap_s=part([times.overlap_s for times in typical]),
        slowest=f"rank {first.slowest.rank} on {first.slowest.host}" if len(record.ranks) > 1 else None,
        timed_steps=min(_timed_steps(run.record) for run in group.good) or None,
        steps_needed=max((few for run in group.good if (few := _steps_needed(run.record))), default=None),
        memory_fraction=max((used for run in group.good if (used := _memory(run.record))), default=None),
        profiled=profiled_ranks([run.record for run in group.good]),
    )
    return split, facts


MOST_OFTEN_TIMED = 10  # DDP times every tenth step at most

_NO_TIMES = DdpTimes(samples=0, forward_s=None, backward_s=None, comm_s=None, overlap_s=None, exposed_comm_s=None)


def _split_run(run: Good, step_s: float) -> _Run | None:
    """Return the split of a run; None if its ranks did not time their steps."""
    ranks = run.record.ranks
    steps = [rank.step_time_s for rank in ranks if rank.step_time_s is not None]
    if not ranks or len(steps) < len(ranks) or step_s <= 0:
        return None
    longest = max(steps)
    timed = all(_is_timed(rank) for rank in ranks)
    alone = len(ranks) == 1
    waits = [_waits(rank.ddp) if timed else 0.0 for rank in ranks]
    waits = [wait + longest - own for wait, own in zip(waits, steps, strict=True)]
    # DDP times single steps, which may be longer than the median: its times then share what a step has.
    most = max(w + _computes(rank.ddp) if timed else w for w, rank in zip(waits, ranks, strict=True))
    fits = min(1.0, step_s / most) if most > 0 else 1.0
    times = sorted(
        (
            _Times(
                rank,
                own_s=step_s - fits * wait,
                data_wait_s=_data_wait_s(rank, step_s),
                compute_s=fits * _computes(rank.ddp) if timed else None,
            )
            for rank, wait in zip(ranks, waits, strict=True)
        ),
        key=lambda each: each.own_s,
    )
    typical, slowest = times[(len(times) - 1) // 2], times[-1]
    compute_s = typical.compute_s
    data_wait_s = typical.data_wait_s
    if data_wait_s is not None and compute_s is not None:
        room = max(0.0, typical.own_s - compute_s)
        if typical.rank.device.kind == "cuda":
            data_wait_s = min(data_wait_s, room)  # the host waits while the GPU still computes
        else:
            data_wait_s = min(data_wait_s, typical.own_s)
            compute_s = min(compute_s, typical.own_s - data_wait_s)
    elif data_wait_s is not None:
        data_wait_s = min(data_wait_s, typical.own_s)
    split = StepSplit(
        step_s,
        data_wait_s=data_wait_s,
        compute_s=compute_s,
        exposed_comm_s=step_s - slowest.own_s if timed or alone else None,
        imbalance_s=slowest.own_s - typical.own_s,
    )
    own = tuple(each.own_s for each in times) if timed or alone else ()
    return _Run(split, typical.rank, slowest.rank, own)


def _timed_steps(record: Record) -> int:
    return min(rank.ddp.samples if rank.ddp else 0 for rank in record.ranks)


def _steps_needed(record: Record) -> int | None:
    """Return the max_steps with which DDP times enough steps of such a run; None if it timed enough, or none."""
    if not 0 < _timed_steps(record) < LEAST_TIMED_STEPS:
        return None
    # A run without max_steps on a GPU has every hundredth step timed; one with max_steps, about ten of them.
    made = max(rank.steps for rank in record.ranks)
    return max(made, record.spec.warmup_steps + LEAST_TIMED_STEPS * MOST_OFTEN_TIMED)


def _is_timed(rank: Rank) -> bool:
    times = rank.ddp
    if times is None or times.samples < LEAST_TIMED_STEPS:
        return False
    return None not in (times.forward_s, times.backward_s, times.exposed_comm_s)


def _waits(times: DdpTimes | None) -> float:
    return (times.exposed_comm_s or 0.0) if times else 0.0


def _computes(times: DdpTimes | None) -> float:
    return (times.forward_s or 0.0) + (times.backward_s or 0.0) if times else 0.0


def _data_wait_s(rank: Rank, step_s: float) -> float | None:
    return None if rank.data_wait_fraction is None else rank.data_wait_fraction * step_s


def _settings(record: Record) -> StepFacts:
    """Return the facts that are settings of the training."""
    seen = record.fingerprint
    buckets = seen.get("bucket_bytes")
    return StepFacts(
        gradient_bytes=seen.get("gradient_bytes"),
        buckets=len(buckets) if buckets else None,
        comm_hook=seen.get("comm_hook"),
        parameter_dtype=seen.get("parameter_dtype"),
        workers=seen.get("num_workers"),
        backend=record.world.backend,
    )


def _memory(record: Record) -> float | None:
    """Return the part of its memory that the fullest GPU used; None if it is not known."""
    gpus = record.usage.gpus if record.usage else ()
    known = [g.memory_used_bytes / g.memory_bytes for g in gpus if g.memory_used_bytes is not None and g.memory_bytes]
    return max(known, default=None)
