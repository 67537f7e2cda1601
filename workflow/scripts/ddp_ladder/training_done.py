"""How much training a run did, and whether two runs of the same settings did the same.

A script counts in steps or in passes over its data. With the same settings it makes the same number of steps at every
scale, or it consumes the same samples, with fewer steps where more ranks share them. A run that did neither did not do
what the settings say: it went on from where another one had ended, for one.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddp_ladder.record import Record

TOLERANCE = 0.05
"""Fraction that steps or samples may differ by. Batches by length, data in shards, steps that a gradient scaler skips
make some percent of difference; a run that resumed and still made 95 % of its steps was measured in the same state."""
LOOSE = 0.25
"""In place of a batch per pass, where passes are not seen: of at least eight steps, the last one may be missing."""


@dataclass(frozen=True)
class Training:
    """What a run did. samples: of all ranks, without padding."""

    steps: int
    samples: int
    passes: int | None  # over the training data; None: not seen
    cut: bool  # ended by a maximum: it would have gone on

    @property
    def in_words(self) -> str:
        return f"{self.steps:,} ({self.samples:,} samples)"


def training_of(record: Record) -> Training | None:
    """None where it is not known, or where an earlier attempt did a part (its exit code said so)."""
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
    """Whether both did as much as the same settings ask for; True where nothing can be expected."""
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
    """Samples that a pass may leave out at its end: up to one batch of all ranks, whose size differs with the scale."""
    if one.passes is None or other.passes is None:
        return LOOSE * max(one.samples, other.samples)
    return max(one.passes, other.passes) * (one.samples / one.steps + other.samples / other.steps)


def _as_many_passes(one: Training, other: Training) -> bool:
    """One more or less is no difference: a budget of samples may end just before or after the last pass does."""
    if one.passes is None or other.passes is None:
        return True
    return abs(one.passes - other.passes) <= max(1.0, TOLERANCE * max(one.passes, other.passes))
