"""What is known of the steps of a scale beside their parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddp_ladder.common.model import IN_A_MODEL
from ddp_ladder.gates.profiled import ProfiledRank


@dataclass(frozen=True)
class StepFacts:
    """What else is known of a scale's steps. Times in seconds; None: not known.

    own_mean_s, own_max_s: own work of the ranks. comm_s, overlap_s: of the typical rank. slowest: its place, such as
    ``rank 3 on node2``. timed_steps: the fewest that DDP timed on a rank. steps_needed: the max_steps with which DDP
    times enough of them; None if it did, or timed none. memory_fraction: of the fullest GPU. profiled: rank 0 and the
    slowest rank.
    """

    __pydantic_config__: ClassVar = IN_A_MODEL
    own_mean_s: float | None = None
    own_max_s: float | None = None
    comm_s: float | None = None
    overlap_s: float | None = None
    slowest: str | None = None
    timed_steps: int | None = None
    steps_needed: int | None = None
    gradient_bytes: int | None = None
    buckets: int | None = None
    comm_hook: str | None = None
    parameter_dtype: str | None = None
    workers: int | None = None
    backend: str | None = None
    memory_fraction: float | None = None
    profiled: tuple[ProfiledRank, ...] = ()
