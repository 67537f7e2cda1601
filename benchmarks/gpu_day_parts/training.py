"""Shared by the parts that train: the fraction of the matrix rate, and a profile of the device's time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch
import workloads
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import common
from gpu_day_parts.card import matrix_rate_flop_per_s
from gpu_day_parts.figures import Figures

PROFILED_STEPS = {"cuda": 10, "cpu": 1}
MOST_KERNELS = 8
LONGEST_NAME = 80  # characters of a kernel's name
HOW_COUNTED = (
    "Model FLOP: matrix products and convolutions of the forward and the backward pass, as torch.utils.flop_counter "
    "counts them (an addition and a multiplication are two); normalisation, activations, optimizer are left out. "
    "Share: model FLOP/s over the bf16 matrix rate, both measured in this process."
)


def flop_per_sample(model: nn.Module, shape: Sequence[int]) -> float:
    """Return the floating-point operations of forward and backward pass, per sample of this shape."""
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(2, *shape)).sum().backward()
    return float(counter.get_total_flops() / 2)


def put_share(figures: Figures, name: str, images_per_s: float, flop: float, device: torch.device) -> None:
    """Add a rate as a fraction of the bf16 matrix rate, which is measured here."""
    peak = matrix_rate_flop_per_s(device, torch.bfloat16)
    share = {
        f"{name}_tflop_per_s": images_per_s * flop / 1e12,
        f"{name}_share_of_matrix_rate": images_per_s * flop / peak,
    }
    figures.put(matrix_rate_bf16_tflop_per_s=peak / 1e12, **share)


def put_pair(figures: Figures, name: str, pair: workloads.Pair) -> float:
    """Add both sides of a pair to the figures; return the median ratio."""
    ratio = statistics.median(pair.ratios)
    figures.put(
        **{
            f"{name}_guide_images_per_s": statistics.median(pair.guide),
            f"{name}_ours_images_per_s": statistics.median(pair.ours),
            f"{name}_ratio": ratio,
            f"{name}_ratio_low": min(pair.ratios),
            f"{name}_ratio_high": max(pair.ratios),
        }
    )
    return ratio


def where_time_goes(steps: workloads.Steps, device: torch.device) -> dict[str, Any]:
    """Return the fraction of the device's time per kernel (on a CPU: operator), and of the time that kernels ran."""
    on_gpu = device.type == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU] + [torch.profiler.ProfilerActivity.CUDA] * on_gpu
    with torch.profiler.profile(activities=activities) as profile:
        begin_s = common.now(device)
        for _ in range(PROFILED_STEPS[device.type]):
            next(steps)
        seconds = common.now(device) - begin_s
    wanted = torch.autograd.DeviceType.CUDA if on_gpu else torch.autograd.DeviceType.CPU  # type: ignore[attr-defined]
    each_us = {
        event.key: event.self_device_time_total if on_gpu else event.self_cpu_time_total
        for event in profile.key_averages()
        if event.device_type == wanted and not getattr(event, "is_user_annotation", False) and "#" not in event.key
    }
    total_us = sum(each_us.values()) or math.inf  # if the profiler sees nothing
    longest = sorted(each_us, key=lambda key: each_us[key], reverse=True)[:MOST_KERNELS]
    return {
        "busy_fraction": sum(each_us.values()) / 1e6 / seconds,
        "shares": {key[:LONGEST_NAME]: round(each_us[key] / total_us, 4) for key in longest},
    }
