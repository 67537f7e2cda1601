"""How fast is this device at products of large matrices, in each precision that a training may use?

This is what a training's FLOP/s are compared with: the data sheet's peak is reached by nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from ddp_ladder_instrument import accelerator

SMALLEST, LARGEST = 256, 8192  # rows
LONG_ENOUGH_S = 0.005  # for one product: with larger matrices it would hardly be faster
TIMED_S = 0.15  # of each precision
BLOCKS = 5
MOST_S = 0.5  # of a first product: with smaller ones this precision is too slow to train with, and is left out


def rates(device: torch.device) -> Iterator[tuple[str, float]]:
    """Yield each precision with its rate in TFLOP/s."""
    before = torch.get_float32_matmul_precision()
    kinds = [("fp32", torch.float32), ("bf16", torch.bfloat16)]
    if accelerator.is_gpu(device):
        kinds += [("fp16", torch.float16), *([("tf32", torch.float32)] if accelerator.has_tf32() else [])]
    try:
        for name, dtype in kinds:
            torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
            rate = tflop_per_s(device, dtype)
            if rate is not None:
                yield name, rate
    finally:
        torch.set_float32_matmul_precision(before)


def tflop_per_s(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the rate of the fastest of BLOCKS in TFLOP/s; None if it is too slow to be measured."""
    size = SMALLEST
    while True:
        values = torch.randn(size, size, device=device).to(dtype)
        first_s = _seconds(values, 1)  # a warm-up, too
        if first_s > MOST_S and size == SMALLEST:
            return None
        once_s = min(_seconds(values, 1) for _ in range(2))
        if once_s >= LONG_ENOUGH_S or size == LARGEST:
            break
        size *= 2
    products = max(1, int(TIMED_S / BLOCKS / once_s))
    each_s = min(_seconds(values, products) / products for _ in range(BLOCKS))
    return 2 * size**3 / each_s / 1e12


def _seconds(values: torch.Tensor, products: int) -> float:
    accelerator.synchronize(values.device)
    began_s = time.perf_counter()
    for _ in range(products):
        values @ values
    accelerator.synchronize(values.device)
    return time.perf_counter() - began_s
