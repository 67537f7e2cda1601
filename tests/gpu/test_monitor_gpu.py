"""What the monitor reads of real GPUs through NVML and GPM."""

from __future__ import annotations

import os
import time

import pytest
import torch
from ddp_ladder.nodes.gpus import Gpus, Value, open_nvidia

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here"),
]
HOPPER = (9, 0)


@pytest.fixture(scope="module")
def gpus() -> Gpus:
    return open_nvidia(os.environ)


def multiply_for(seconds: float) -> None:
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()


def sample(gpus: Gpus) -> dict[str, Value]:
    return gpus.sample(time.monotonic())


def figure(row: dict[str, Value], name: str) -> float:
    value = row[f"gpu0_{name}"]
    assert isinstance(value, int | float), name
    return float(value)


def test_the_gpus_are_those_that_torch_sees(gpus: Gpus) -> None:
    assert [gpu.about.name for gpu in gpus.each] == [
        torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
    ]
    for index, gpu in enumerate(gpus.each):
        uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)  # torch 2.4 has none
        assert uuid is None or gpu.about.uuid == f"GPU-{uuid}"
        assert gpu.about.memory_bytes


def test_a_gpu_that_multiplies_is_busy_and_draws_power(gpus: Gpus) -> None:
    sample(gpus)
    before_j = figure(sample(gpus), "energy_j")
    multiply_for(3)
    row = sample(gpus)
    assert figure(row, "busy_fraction") > 0.9
    assert figure(row, "power_w") > 0
    assert figure(row, "energy_j") > before_j
    assert 0 < figure(row, "temperature_c") < 120
    assert figure(row, "sm_clock_mhz") > 100
    assert row["gpu0_throttle_reasons"] is not None
    assert gpus.errors == []


def test_memory_that_is_allocated_is_used(gpus: Gpus) -> None:
    before = figure(sample(gpus), "memory_used_bytes")
    held = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")
    assert figure(sample(gpus), "memory_used_bytes") - before >= 0.9 * held.numel()
    del held
    torch.cuda.empty_cache()


def test_gpm_tells_tensor_cores_from_copies_where_it_may_be_read(gpus: Gpus) -> None:
    lacking = [note for note in gpus.notes if "GPM" in note]
    if torch.cuda.get_device_capability() < HOPPER:
        assert lacking
        return
    if lacking:
        pytest.skip(lacking[0])  # a site may keep it for itself
    sample(gpus)
    multiply_for(1)
    products = sample(gpus)
    time.sleep(1)
    idle = sample(gpus)
    assert figure(products, "tensor_active_fraction") > 0.2 > figure(idle, "tensor_active_fraction")
    assert figure(products, "sm_active_fraction") > 0.5 > figure(idle, "sm_active_fraction")
    assert 0 <= figure(products, "dram_active_fraction") <= 1
