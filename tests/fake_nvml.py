"""NVIDIA's libnvidia-ml.so.1, which cannot exist here, as a library with the same functions (fake_nvml.c).

The values of an A100 and of an H100 are those that `nvidia-smi dmon` and `nvidia-smi -q` printed on public machines,
unless a comment says otherwise.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
GpuValues = Mapping[str, object]

# `nvidia-smi dmon --gpm-metrics 2,3,5`: "360 55 56 100 16 ... 1593 1410 - - -"; `nvidia-smi -q`: limit, slowdown.
A100: GpuValues = {
    "name": "NVIDIA A100-SXM4-80GB",
    "uuid": "GPU-0a1b2c3d-0000-0000-0000-00000000000a",
    "bus_id": "00000000:07:00.0",
    "gpu_percent": 100,
    "memory_percent": 16,
    "memory_total": 85_899_345_920,
    "memory_used": 34_359_738_368,
    "power_mw": 360_000,
    "energy_mj": 1_000_000,  # made up, as every counter
    "limit_mw": 400_000,
    "limit_max_mw": 400_000,
    "temperature_c": 55,
    "slowdown_c": 89,
    "sm_mhz": 1410,
    "sm_max_mhz": 1410,
    "memory_mhz": 1593,
    "reasons": 0,
    "pcie_tx_kb_per_s": 500,
    "pcie_rx_kb_per_s": 72_000,
    "field_138": 1000,
    "field_139": 2000,
}

# `nvidia-smi -q -d POWER,TEMPERATURE,CLOCK,PERFORMANCE` at its power limit: "SW Power Cap: Active", 699.81 W, 71 C,
# 1590 MHz. The figures of GPM are made up.
H100: GpuValues = {
    **A100,
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "GPU-0a1b2c3d-0000-0000-0000-00000000000b",
    "bus_id": "00000000:1B:00.0",
    "power_mw": 699_810,
    "limit_mw": 700_000,
    "limit_max_mw": 700_000,
    "temperature_c": 71,
    "sm_mhz": 1590,
    "sm_max_mhz": 1980,
    "memory_mhz": 2619,
    "reasons": 0x4,
    "gpm_2": 97.5,
    "gpm_5": 41.25,
    "gpm_10": 33,
    "gpm_20": 10,
    "gpm_21": 250,
}


def compiled(directory: Path, *options: str) -> Path:
    """Compile the library into a directory, for LD_LIBRARY_PATH; return its path."""
    if shutil.which("gcc") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("gcc is missing; CI has to compile the library")
        pytest.skip("gcc is missing")
    library = directory / "libnvidia-ml.so.1"
    argv = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wno-unused-parameter", *options]
    subprocess.run([*argv, "-o", str(library), str(SOURCE)], check=True)
    return library


def write_gpus(file: Path, gpus: Sequence[GpuValues]) -> None:
    """Write the file that FAKE_NVML names."""
    lines = [f"{index}.{key} {value}\n" for index, gpu in enumerate(gpus) for key, value in gpu.items()]
    file.write_text("".join(lines))


def install(library: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pynvml load this library in this process, with the GPUs of the file."""
    import pynvml

    monkeypatch.setenv("FAKE_NVML", str(file))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
