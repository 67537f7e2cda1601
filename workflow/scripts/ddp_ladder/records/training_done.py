"""The amount of training of a run, and whether two runs with the same settings did the same amount.

A script counts in steps or in passes over its data. With the same settings it makes the same number of steps at every
scale, or it consumes the same samples, in fewer steps if more ranks share them. A run that did neither did not do
what the settings ask for; for example, it resumed from a snapshot of another run.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddp_ladder.records.record import Record

TOLERANCE = 0.05
"""Fraction by which steps or samples may differ. Batches by length, shards of data and steps that a gradient scaler
skips differ by some percent; a run that resumed and still made 95 % of its steps was measured in the same state."""
LOOSE = 0.25
"""Tolerance if passes were not seen, instead of a batch per pass: of at least eight steps, the last may be missing."""


@dataclass(frozen=True)
class Training:
    """The training of a run. samples: of all ranks, without padding."""

    steps: int
    samples: int
    passes: int | None  # over the training data; None: not seen
    cut: bool  # ended by max_steps or max_seconds, not by itself

    @property
    def in_words(self) -> str:
        return f"{self.steps:,} ({self.samples:,} samples)"


def training_of(record: Record) -> Training | None:
    """Return the training of a run; None if unknown, or if an earlier attempt did a part (exit code 75)."""
    steps = {rank.steps for rank in record.ranks}
    source = record.throughput.source if record.throughput else None
    if len(steps) != 1 or 0 in steps or source in (None, "log") or record.fingerprint.get("goes_on"):
        return None
    return Training(
        steps=steps.pop(),
        samples=sum(rank.samples for rank in record.ranks),
        passes=record.fingerprint.get("passes"),
        cut=record.ranks[0].ended_by in ("max_steps", "max_seconds"),
    )


def same_training(a: Record, b: Record) -> bool:
    """Return True if both runs did the same amount of training, or if nothing can be expected of them."""
    one, other = training_of(a), training_of(b)
    if one is None or other is None or (one.cut and other.cut):
        return True
    slack = 0.0 if a.spec.world_size == b.spec.world_size else _slack(one, other)
    if one.cut or other.cut:
        part, whole = (one, other) if one.cut else (other, one)
        return whole.steps >= (1 - TOLERANCE) * part.steps or whole.samples + slack >= (1 - TOLERANCE) * part.samples
    if _near(one.steps, other.steps) or _near(one.samples, other.samples):
        return True
    return _near(one.samples, other.samples, slack) and _as_many_passes(one, other)


def _near(a: float, b: float, slack: float = 0.0) -> bool:
    return abs(a - b) <= TOLERANCE * max(a, b) + slack


def _slack(one: Training, other: Training) -> float:
    """Return the samples that passes may leave out at their ends: up to one batch of all ranks for each pass."""
    if one.passes is None or other.passes is None:
        return LOOSE * max(one.samples, other.samples)
    return max(one.passes, other.passes) * (one.samples / one.steps + other.samples / other.steps)


def _as_many_passes(one: Training, other: Training) -> bool:
    """Compare passes. One more or less is equal: a budget of samples may end just before or after a pass."""
    if one.passes is None or other.passes is None:
        return True
    return abs(one.passes - other.passes) <= max(1.0, TOLERANCE * max(one.passes, other.passes))
