"""The number of steps that a run is expected to make: its maximum, or that of a finished run of its training. Pure.

Another repeat of the same scale makes the same number of steps. A run of another scale makes as many passes over the
data, and the steps of one pass are known once the run has begun; its samples alone give an estimate, because the last
batch of each pass is smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.record import Record

# Fields that decide how long a training is; the others only say where it runs.
SAME = ("variant", "mode", "script", "args_template", "env_template", "samples_per_step", "max_steps", "max_seconds")


@dataclass(frozen=True)
class Total:
    """A number of steps; an estimate unless it is exact."""

    steps: int
    exact: bool = True

    def __str__(self) -> str:
        return f"{self.steps:,}" if self.exact else f"about {self.steps:,}"


@dataclass(frozen=True)
class Expected:
    """What is known of a run's steps before its first one. other: a finished run of the same training; may be None.

    other_epoch_steps: steps of one pass over the data in it; None if unknown.
    """

    spec: RunSpec
    other: Record | None = None
    other_epoch_steps: int | None = None

    def total(self, progress: Mapping[str, Any] | None) -> Total | None:
        """Return the number of steps; None if it is unknown, or if the run has already made more.

        progress: as progress.json has it; None before the first step.
        """
        made = 0 if progress is None else progress["step"]
        most = None if self.spec.max_steps is None else Total(self.spec.max_steps)
        known = [total for total in (self._of_other(progress), most) if total and total.steps >= made]
        return min(known, key=lambda total: total.steps, default=None)

    def _of_other(self, progress: Mapping[str, Any] | None) -> Total | None:
        if self.other is None:
            return None
        ranks, there = self.other.ranks, self.other.spec
        if there.scale == self.spec.scale:
            return Total(max(rank.steps for rank in ranks))
        if self.spec.max_steps is not None and ranks[0].ended_by == "max_steps":
            return None  # it has not shown where the training would end by itself
        epoch_steps = progress and progress.get("epoch_steps")
        if epoch_steps and self.other_epoch_steps:
            passes = max(rank.steps for rank in ranks) / self.other_epoch_steps
            return Total(max(1, round(passes * epoch_steps)))
        samples = sum(rank.samples + rank.padding_samples for rank in ranks)
        return Total(max(1, round(samples / self.spec.global_batch)), exact=False) if samples else None


def most_alike(spec: RunSpec, finished: Iterable[Record]) -> Record | None:
    """Return the first finished run of the same training, if there is one at the same scale; None if there is none."""
    alike = [record for record in finished if _is_alike(spec, record)]
    return next((record for record in alike if record.spec.scale == spec.scale), next(iter(alike), None))


def _is_alike(spec: RunSpec, record: Record) -> bool:
    """Return True if the record shows how many steps a training of this spec makes; a limit in seconds hides it."""
    same = all(getattr(spec, field) == getattr(record.spec, field) for field in SAME)
    return same and record.status == "ok" and bool(record.ranks) and spec.max_seconds is None
