"""The split of a scale's step by what its time is for: that of its repeats. Its parts add up to the step exactly. Pure.

Each run's split is in its record: usage/critical_rank. Docs: docs/attribution.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddp_ladder.gates.groups import Group
from ddp_ladder.gates.step_facts import StepFacts
from ddp_ladder.records.record import Record
from ddp_ladder.usage.critical_rank import LEAST_TIMED_STEPS, StepParts

ENOUGH_STEPS = 4 * LEAST_TIMED_STEPS  # after the warm-up, if the number of steps is known beforehand
STEP_PARTS = ("compute_s", "exposed_comm_s", "data_wait_s", "imbalance_s", "rest_s")


@dataclass(frozen=True)
class StepSplit:
    """The parts of a step in seconds, as defined in ``StepParts``. None: not told apart from rest.

    rest_s: what no figure explains: optimizer, copies, Python.
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


def split_of_repeats(group: Group) -> tuple[StepSplit, StepFacts] | None:
    """Return the split of a scale's step, and its facts: means over its good repeats; None if there are none.

    A part that a repeat does not know is not known.
    """
    runs = [run.record.step for run in group.good if run.record.step and run.record.step.step_s]
    if not runs or len(runs) < len(group.good):
        return None
    step_s = group.step_time_s

    def part(key: str) -> float | None:
        """Return the mean of a part's fractions of each repeat's step, as a part of the scale's."""
        known = [value / run.step_s for run in runs if (value := getattr(run, key)) is not None]
        return step_s * sum(known) / len(known) if len(known) == len(runs) else None

    records = [run.record for run in group.good]
    split = StepSplit(step_s, part("data_wait_s"), part("compute_s"), part("exposed_comm_s"), part("imbalance_s"))
    facts = replace(
        _held_up(records, runs),
        own_mean_s=part("own_mean_s"),
        own_max_s=part("own_max_s"),
        imbalance_data_s=part("imbalance_data_s"),
        imbalance_compute_s=part("imbalance_compute_s"),
        loaders_slow=all(run.loaders_slow for run in runs),
        comm_s=part("comm_s"),
        overlap_s=part("overlap_s"),
        timed_steps=min(map(_timed_steps, records)) or None,
        steps_needed=max((few for record in records if (few := _steps_needed(record))), default=None),
        memory_fraction=max((used for record in records if (used := _memory(record))), default=None),
    )
    return split, facts


def _held_up(records: Sequence[Record], runs: Sequence[StepParts]) -> StepFacts:
    """Return the settings of the training, and who holds up the others: it varies unless it is the same in each run."""
    facts, first = _settings(records[0]), runs[0]
    if any(run.imbalance_kind is None for run in runs):
        return facts
    shares = [run.slow_share for run in runs if run.slow_share is not None]
    facts = replace(facts, imbalance_kind="varying", slow_share=max(shares, default=None))
    places = {_place(record, run.slow_ranks) for record, run in zip(records, runs, strict=True)}
    if len(places) > 1 or not first.slow_ranks:
        return facts
    steps = [run.slow_steps for run in runs if run.slow_steps is not None]
    return replace(
        facts,
        imbalance_kind="persistent" if all(run.imbalance_kind == "persistent" for run in runs) else "occasional",
        slowest=places.pop(),
        slow_steps=sum(steps) / len(steps) if steps else None,
    )


def _place(record: Record, slow: Sequence[int]) -> str:
    """Return ``rank 3 on node2``, or ``ranks 2, 3 on node1``."""
    here = [rank for rank in record.ranks if rank.rank in slow]
    ranks = ", ".join(str(rank.rank) for rank in here)
    return f"rank{'s' if len(here) > 1 else ''} {ranks} on {', '.join(dict.fromkeys(rank.host for rank in here))}"


def _timed_steps(record: Record) -> int:
    """Return the steps that DDP timed on all ranks; if they were too few, the fewest of a rank."""
    of_ranks = min((rank.ddp.samples if rank.ddp else 0 for rank in record.ranks), default=0)
    return (record.step.timed_steps if record.step else 0) or of_ranks


def _steps_needed(record: Record) -> int | None:
    """Return the max_steps with which DDP times enough steps of such a run; None if it timed enough, or none."""
    if not 0 < _timed_steps(record) < LEAST_TIMED_STEPS:
        return None
    return max(*(rank.steps for rank in record.ranks), record.spec.warmup_steps + ENOUGH_STEPS)


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
