"""The machine, and its GPU's rate of large matrix products."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import torch
import workloads

import common
from gpu_day_parts.figures import Figures, Setting

NVIDIA_SMI = ("name", "driver_version", "power.limit", "clocks.max.sm", "memory.total")
SIZE = {"cuda": 8192, "cpu": 256}
PRODUCTS = {"cuda": 50, "cpu": 3}


def matrix_rate_flop_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """Return the floating-point operations per second of a large square matrix product of random numbers."""
    size, products = SIZE[device.type], PRODUCTS[device.type]
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    for _ in range(10):
        a @ b
    begin_s = common.now(device)
    for _ in range(products):
        a @ b
    return float(products * 2 * size**3 / (common.now(device) - begin_s))


def measure(setting: Setting, figures: Figures) -> None:
    """Record versions and hardware, and measure bf16, fp16, TF32 and fp32 products."""
    device = torch.device(setting.device)
    figures.put(machine={**workloads.machine(), **(_card() if setting.on_gpu else {})})
    rates = {}
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
    for name, dtype in dtypes.items():
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        rates[name] = matrix_rate_flop_per_s(device, dtype) / 1e12
        figures.put(**{f"matrix_rate_{name}_tflop_per_s": rates[name]})
    size, products = SIZE[setting.device], PRODUCTS[setting.device]
    figures.note(f"Matrix rate: {products} products of random {size} x {size} matrices, 2 n^3 operations each.")
    figures.headline(f"bf16 matrix products at {rates['bf16']:.3g} TFLOP/s")


def _card() -> dict[str, Any]:
    found: dict[str, Any] = {
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "compute_capability": ".".join(map(str, torch.cuda.get_device_capability())),
    }
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", f"--query-gpu={','.join(NVIDIA_SMI)}", "--format=csv,noheader", "--id=0"]
        done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=30)
        found["nvidia_smi"] = dict(zip(NVIDIA_SMI, done.stdout.strip().split(", "), strict=False))
    return found
