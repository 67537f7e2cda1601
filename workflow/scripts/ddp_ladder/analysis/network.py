"""The all-reduce of a step, from what the preflight and the instrument measured: what a prediction may know. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ddp_ladder.settings.terms import Mode, Scale


@dataclass(frozen=True)
class AllReduce:
    """The gradients' all-reduce, measured at a scale: it takes alpha + beta x bytes for each bucket.

    overlap_s: how much of a step's all-reduces the backward pass hides.
    batch_per_gpu: at the scale where it was measured.
    """

    scale: Scale
    alpha_s: float
    beta_s_per_byte: float
    gradient_bytes: int
    buckets: int
    overlap_s: float
    batch_per_gpu: int

    def exposed_s_per_sample(self, at: Scale, mode: Mode) -> float:
        """Return what is not hidden at a scale, in seconds per sample of a GPU.

        The bytes on each link grow as 2(n-1)/n (ring). A single node has another network: 0 if this one is of several.
        """
        n, measured = at.world_size, self.scale.world_size
        if n == 1 or (at.nodes == 1 and self.scale.nodes > 1):
            return 0.0
        growth = ((n - 1) / n) / ((measured - 1) / measured) if measured > 1 else 1.0
        time_s = self.alpha_s * self.buckets + self.beta_s_per_byte * self.gradient_bytes * growth
        batch = self.batch_per_gpu if mode == "weak" else self.batch_per_gpu * measured / n
        return max(0.0, time_s - self.overlap_s) / batch
