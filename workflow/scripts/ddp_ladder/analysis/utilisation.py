"""FLOP/s of each GPU at each scale, and the share of what it can do. Pure, but for the table of peaks.

The FLOPs per sample are counted at the first scale. They hold at every scale of the same variant and mode whose
fingerprint is the same: the batch does not change them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ddp_ladder.common.formats import share
from ddp_ladder.gates.points import Figures, ScalePoint

Rates = Mapping[str, float]  # TFLOP/s by precision


def with_flops(points: Sequence[ScalePoint], matrix_rates: Mapping[str, Rates]) -> tuple[ScalePoint, ...]:
    """Return the points with their FLOP/s, as far as they are known. matrix_rates: those measured, by scale."""
    counted = {(point.mode, point.variant): point for point in points if point.is_baseline}
    return tuple(_with(point, counted.get((point.mode, point.variant)), matrix_rates) for point in points)


def _with(point: ScalePoint, baseline: ScalePoint | None, matrix_rates: Mapping[str, Rates]) -> ScalePoint:
    flops = baseline.flops if baseline else None
    if flops and flops.why:
        return replace(point, flops_not_counted=flops.why)
    per_sample = baseline["model_flops_per_sample"] if baseline else None
    if baseline is None or flops is None or per_sample is None or point.rate is None:
        return point
    if point.differing:
        return point.having({"model_flops_per_sample": None})
    achieved = per_sample * point.rate / point.world_size / 1e12
    measured = rate_of(flops.precisions, matrix_rates.get(str(point.scale), {}))
    peak = rate_of(flops.precisions, peaks(point.gpu))
    figures: Figures = {
        "model_flops_per_sample": per_sample,
        "tflop_per_s_per_gpu": achieved,
        # The matrix rate was measured under load if it is smaller.
        "fraction_of_matrix_rate": achieved / measured if measured and achieved.value <= measured else None,
        "fraction_of_peak": achieved / peak if peak else None,
    }
    return point.having(figures, flops_precision=in_words(flops.precisions))


def rate_of(precisions: Mapping[str, float], rates: Rates) -> float | None:
    """Return the rate of work whose parts have these precisions, done one after another; None if one is not known."""
    if not precisions or any(not rates.get(name) for name in precisions):
        return None
    return 1 / sum(part / rates[name] for name, part in precisions.items())


def in_words(precisions: Mapping[str, float]) -> str:
    """Return ``bf16``, or of several ``98 % tf32, 2.0 % fp32``."""
    names = sorted(precisions, key=lambda name: -precisions[name])
    return names[0] if len(names) == 1 else ", ".join(f"{share(precisions[name])} {name}" for name in names)


def peaks(gpu: str | None) -> Rates:
    """Return the data sheet's peaks of a GPU; empty if it is not known, or a part of one."""
    if gpu is None or "MIG" in gpu:
        return {}
    return next((row["tflop_per_s"] for row in _table() if re.search(row["name"], gpu)), {})


@cache
def _table() -> list[dict[str, Any]]:
    return list(tomllib.loads(Path(__file__).with_name("gpu_peaks.toml").read_text(encoding="utf-8"))["gpu"])
