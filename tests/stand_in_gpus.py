"""NVIDIA's libnvidia-ml.so.1, which cannot exist here, as a library with the same functions (stand_ins/nvml.c).

The values of an A100 and of an H100 are those that `nvidia-smi dmon` and `nvidia-smi -q` printed on public machines,
unless a comment says otherwise.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from needed import need

STAND_INS = Path(__file__).with_name("stand_ins")
SOURCE = STAND_INS / "nvml.c"
GpuValues = dict[str, object]

# `nvidia-smi dmon`: "360 55 56 100 16 ... 1593 1410"; `nvidia-smi -q`: limit.
A100: GpuValues = {
    "name": "NVIDIA A100-SXM4-80GB",
    "uuid": "GPU-0a1b2c3d-0000-0000-0000-00000000000a",
    "gpu_percent": 100,
    "memory_percent": 16,
    "memory_total": 85_899_345_920,
    "memory_used": 34_359_738_368,
    "power_mw": 360_000,
    "energy_mj": 1_000_000,  # made up, as every counter
    "limit_mw": 400_000,
    "temperature_c": 55,
    "sm_mhz": 1410,
    "reasons": 0,
}

# `nvidia-smi -q -d POWER,TEMPERATURE,CLOCK,PERFORMANCE` at its power limit: "SW Power Cap: Active", 699.81 W, 71 C,
# 1590 MHz.
H100: GpuValues = {
    **A100,
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "GPU-0a1b2c3d-0000-0000-0000-00000000000b",
    "power_mw": 699_810,
    "limit_mw": 700_000,
    "temperature_c": 71,
    "sm_mhz": 1590,
    "reasons": 0x4,
}

# Bit 0x20 is NVML's thermal slowdown by software; the clock is what an A100 falls to.
HOT: GpuValues = {**A100, "uuid": "GPU-0a1b2c3d-0000-0000-0000-00000000000c", "reasons": 0x20, "sm_mhz": 1065}
LOST: GpuValues = {**A100, "uuid": "GPU-0a1b2c3d-0000-0000-0000-00000000000d", "gone": 1}
# In MIG mode, with one slice.
SLICED: GpuValues = {
    **A100,
    "uuid": "GPU-0a1b2c3d-0000-0000-0000-00000000000e",
    "mig.name": "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
    "mig.uuid": "MIG-0a1b2c3d-0000-0000-0000-00000000000f",
    "mig.memory_total": 10_200_547_328,
}


def compiled(directory: Path, *options: str) -> Path:
    """Compile the library into a directory, for LD_LIBRARY_PATH; return its path. options: of the compiler."""
    need(shutil.which("gcc"), "gcc is missing, which compiles the library")
    library = directory / "libnvidia-ml.so.1"
    argv = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wno-unused-parameter"]
    subprocess.run([*argv, *options, "-o", str(library), str(SOURCE)], check=True)
    return library


def write_gpus(file: Path, gpus: Sequence[GpuValues]) -> None:
    """Write the file that STAND_IN_GPUS names."""
    lines = [f"{index}.{key} {value}\n" for index, gpu in enumerate(gpus) for key, value in gpu.items()]
    file.write_text("".join(lines))


def install(library: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pynvml load this library in this process, with the GPUs of the file."""
    import pynvml

    monkeypatch.setenv("STAND_IN_GPUS", str(file))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
