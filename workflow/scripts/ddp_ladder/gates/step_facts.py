"""What is known of the steps of a scale beside their parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddp_ladder.common.model import IN_A_MODEL
from ddp_ladder.usage.critical_rank import Kind


@dataclass(frozen=True)
class StepFacts:
    """What else is known of a scale's steps. Times in seconds; None: not known.

    own_mean_s, own_max_s: own work, mean of the ranks, and of the critical rank of each step. comm_s, overlap_s: of
    the critical rank, which waits for no other. imbalance_kind: see ``critical_rank``; persistent only if it is the
    same place in every repeat. slowest: that place, such as ``rank 3 on node2``. slow_share: of the imbalance, the most
    that a rank or node causes. imbalance_data_s, imbalance_compute_s: parts of the imbalance. loaders_slow: of most
    ranks. timed_steps: the fewest that DDP timed on all ranks of a run. steps_needed: the max_steps with which DDP
    times enough of them; None if it did, or timed none. memory_fraction: of the fullest GPU.
    """

    __pydantic_config__: ClassVar = IN_A_MODEL
    own_mean_s: float | None = None
    own_max_s: float | None = None
    comm_s: float | None = None
    overlap_s: float | None = None
    imbalance_kind: Kind | None = None
    slowest: str | None = None
    slow_share: float | None = None
    slow_steps: float | None = None
    imbalance_data_s: float | None = None
    imbalance_compute_s: float | None = None
    loaders_slow: bool = False
    timed_steps: int | None = None
    steps_needed: int | None = None
    gradient_bytes: int | None = None
    buckets: int | None = None
    comm_hook: str | None = None
    parameter_dtype: str | None = None
    workers: int | None = None
    backend: str | None = None
    memory_fraction: float | None = None
