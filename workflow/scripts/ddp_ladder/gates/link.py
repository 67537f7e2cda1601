"""What the preflight of a scale measured of its network, as far as an attribution needs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.preflight.assemble import believed
from ddp_ladder.preflight.result import PreflightResult


@dataclass(frozen=True)
class Link:
    """An all-reduce of n bytes takes alpha_s + beta_s_per_byte x n. transport: what NCCL used; empty with Gloo."""

    alpha_s: float
    beta_s_per_byte: float
    transport: tuple[str, ...] = ()

    @classmethod
    def of(cls, result: PreflightResult | None) -> Link | None:
        """Return the link of a preflight; None if it measured none."""
        if result is None or result.alpha_s is None or result.beta_s_per_byte is None:
            return None
        return cls(result.alpha_s, result.beta_s_per_byte, tuple(result.transport))

    def busbw_gb_per_s(self, ranks: int) -> float | None:
        """Return the bus bandwidth of long all-reduces as nccl-tests defines it; None if their size took no time."""
        return 2 * (ranks - 1) / ranks / self.beta_s_per_byte / 1e9 if self.beta_s_per_byte else None

    def latency_s(self, buckets: int) -> float:
        """Return the part of a step's all-reduces that does not depend on their size."""
        return self.alpha_s * buckets

    def all_reduces_s(self, gradient_bytes: int, buckets: int) -> float:
        """Return the time of a step's all-reduces."""
        return self.latency_s(buckets) + self.beta_s_per_byte * gradient_bytes


def measured_link(results: Path, scale: object) -> Link | None:
    """Return the link that the preflight of a scale measured; None if there is no preflight that can be believed."""
    try:
        return Link.of(believed(results, scale))
    except (OSError, ValueError):
        return None
