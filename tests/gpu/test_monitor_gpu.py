"""What monitor, preflight and the description of a node read of real GPUs, through NVML and nvidia-smi."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
from ddp_ladder.nodes.sampler import describe
from ddp_ladder.platform.accelerators import ACCELERATORS, Gpus, Value, open_nvidia
from ddp_ladder.preflight.nodes import gpus_facts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")]


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


def figure(row: dict[str, Value], name: str) -> float:
    value = row[f"gpu0_{name}"]
    assert isinstance(value, int | float), name
    return float(value)


def test_the_gpus_are_those_that_torch_sees(gpus: Gpus) -> None:
    assert [gpu.about.name for gpu in gpus.sampled] == [
        torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
    ]
    for index, gpu in enumerate(gpus.sampled):
        uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)  # torch 2.4 has none
        assert uuid is None or gpu.about.uuid == f"GPU-{uuid}"
        assert gpu.about.memory_bytes


def test_a_gpu_that_multiplies_is_busy_and_draws_power(gpus: Gpus) -> None:
    gpus.sample()
    before_j = figure(gpus.sample(), "energy_j")
    multiply_for(3)
    row = gpus.sample()
    assert figure(row, "busy_fraction") > 0.9
    assert figure(row, "power_w") > 0
    assert figure(row, "energy_j") > before_j
    assert 0 < figure(row, "temperature_c") < 120
    assert figure(row, "sm_clock_mhz") > 100
    assert row["gpu0_throttle_reasons"] is not None
    assert gpus.errors == []


def test_memory_that_is_allocated_is_used(gpus: Gpus) -> None:
    """A fifth of it, as tests of another process may run beside this one."""
    before = figure(gpus.sample(), "memory_used_bytes")
    held = torch.ones(torch.cuda.mem_get_info()[0] // 5, dtype=torch.uint8, device="cuda")
    assert figure(gpus.sample(), "memory_used_bytes") - before >= 0.9 * held.numel()
    del held
    torch.cuda.empty_cache()


def test_the_gpus_of_the_node_contain_those_that_torch_sees(tmp_path: Path) -> None:
    machine = describe(tmp_path, "1x1", "node", "lo", ACCELERATORS["cuda"].gpus())
    assert "driver None" not in machine.in_words
    seen = {torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
    assert all(name in machine.in_words for name in seen)
    assert int(machine.in_words.partition(" x ")[0]) >= torch.cuda.device_count()


def test_nvidia_smi_tells_of_the_gpus_that_torch_sees() -> None:
    cuda = ACCELERATORS["cuda"]
    facts = gpus_facts(cuda)
    assert facts.error is None
    visible = facts.visible(cuda)
    assert [gpu.name for gpu in visible] == [
        torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
    ]
    for gpu in visible:
        assert gpu.uuid.startswith("GPU-")
        assert gpu.memory_used_mib is not None
