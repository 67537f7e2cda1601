"""DDP's own timings of forward pass, backward pass, communication and overlap."""

from __future__ import annotations

import statistics
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel

MOST_OFTEN, LEAST_OFTEN = 10, 100
"""Iterations between two samples, after DDP's first ten: every tenth at most, torch's own rate at least."""
WANTED_SAMPLES = 10
FIRST_STEADY_ITERATION = 3
"""DDP rebuilds its buckets in the second iteration."""
NANOSECOND_S = 1e-9


class Sample(NamedTuple):
    """One sampled iteration, as seen after optimizer step ``step``."""

    step: int
    iteration: int
    forward_s: float
    backward_s: float
    comm_s: float
    overlap_s: float


class DdpTimings:
    """DDP's samples of the module that was wrapped last."""

    def __init__(self, warmup_steps: int, max_steps: int | None, unmeasured: list[str]) -> None:
        self._warmup_steps = warmup_steps
        self._max_steps = max_steps
        self._unmeasured = unmeasured
        self._module: Callable[[], Any] = lambda: None
        self.wrapped = False
        self._readable = False
        self._rate = LEAST_OFTEN
        self._samples: list[Sample] = []
        self._bucket_bytes: list[int] = []
        self._comm_hook: str | None = None

    def attach(self, module: DistributedDataParallel, device: torch.device) -> None:
        """Sample this module instead of an earlier one."""
        self.wrapped = True
        self._module = weakref.ref(module)
        self._samples.clear()
        self._bucket_bytes = []
        self._readable = self._has(module, "_get_ddp_logging_data")
        if self._has(module, "_set_ddp_runtime_logging_sample_rate"):
            self._rate = sample_rate(device, self._warmup_steps, self._max_steps)
            module._set_ddp_runtime_logging_sample_rate(self._rate)

    def _has(self, module: DistributedDataParallel, method: str) -> bool:
        if hasattr(module, method):
            return True
        self._unmeasured.append(f"ddp: DistributedDataParallel.{method} is missing in torch {torch.__version__}")
        return False

    def poll(self, step: int) -> int | None:
        """Store DDP's newest sample; return the step after which to look again at the latest, None if none is due.

        Costs about 50 microseconds. Only the wanted ones are looked for by steps, so that short runs have them too.
        """
        module = self._module()
        if module is None or not self._readable:
            return None
        self._store_newest(module, step)
        return step + self._rate if step < self._warmup_steps + WANTED_SAMPLES * self._rate else None

    def _store_newest(self, module: Any, step: int) -> None:
        """Store DDP's newest sample, unless it is stored already."""
        data = module._get_ddp_logging_data()
        buckets = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes")
        if buckets:
            self._bucket_bytes = [int(size) for size in str(buckets).split(",")]
        self._comm_hook = str(data["comm_hook"]) if data.get("comm_hook") else None
        iteration = int(data.get("iteration", 0))
        known = self._samples[-1].iteration if self._samples else 0
        if iteration <= known or not data.get("backward_compute_time"):
            return
        self._samples.append(
            Sample(
                step,
                iteration,
                data.get("forward_compute_time", 0) * NANOSECOND_S,
                data.get("backward_compute_time", 0) * NANOSECOND_S,
                data.get("backward_comm_time", 0) * NANOSECOND_S,
                data.get("backward_compute_comm_overlap_time", 0) * NANOSECOND_S,
            )
        )

    def summary(self) -> dict[str, Any] | None:
        """Return the record's ``ddp``: medians in seconds per iteration; None if no module was wrapped."""
        if not self.wrapped:
            return None
        used = self._chosen()
        exposed = [max(0.0, sample.comm_s - sample.overlap_s) for sample in used]
        return {
            "wrapped": True,
            "bucket_bytes": self._bucket_bytes,
            "comm_hook": self._comm_hook,
            "samples": len(used),
            "forward_s": _median([sample.forward_s for sample in used]),
            "backward_s": _median([sample.backward_s for sample in used]),
            "comm_s": _median([sample.comm_s for sample in used]),
            "overlap_s": _median([sample.overlap_s for sample in used]),
            "exposed_comm_s": _median(exposed),
        }

    def _chosen(self) -> list[Sample]:
        measured = [sample for sample in self._samples if sample.step > self._warmup_steps]
        if measured:
            return measured
        early = [sample for sample in self._samples if sample.iteration >= FIRST_STEADY_ITERATION]
        if early:
            self._unmeasured.append(
                "ddp: DDP sampled no iteration after the warm-up; its timings are of iterations "
                f"{early[0].iteration} to {early[-1].iteration}"
            )
        elif self._readable:
            self._unmeasured.append("ddp: DDP sampled no iteration")
        return early


def sample_rate(device: torch.device, warmup_steps: int, max_steps: int | None) -> int:
    """Return the iterations between two samples.

    On CUDA, reading a sample synchronises with the events of the step before, which costs the script time: so no more
    samples than the figures need, and torch's own rate, which the script pays for anyway, if the steps are not known.
    """
    if device.type == "cpu":
        return MOST_OFTEN
    if max_steps is None:
        return LEAST_OFTEN
    return min(LEAST_OFTEN, max(MOST_OFTEN, (max_steps - warmup_steps) // WANTED_SAMPLES))


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
