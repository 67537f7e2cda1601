"""What a real node says of its GPUs: nvidia-smi, NVML and torch agree."""

from __future__ import annotations

import os
import shutil

import pytest
import torch
from ddp_ladder.machine.collect import MIB, collect
from ddp_ladder.node.numa import numa_nodes, parse_cpus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here"),
]


def test_the_gpus_are_those_that_torch_sees() -> None:
    machine, texts = collect("7", "1x1", "node", "lo", has_gpus=True, environment=os.environ)
    assert "nvidia-smi-q.txt" in texts, machine.notes
    assert machine.driver is not None
    assert machine.cuda is not None
    visible = [gpu for gpu in machine.gpus if gpu.visible]
    assert len(visible) == torch.cuda.device_count()
    for gpu, device in zip(visible, map(torch.cuda.get_device_properties, range(len(visible))), strict=True):
        assert gpu.name == device.name
        uuid = getattr(device, "uuid", None)  # torch 2.4 has none
        assert uuid is None or gpu.uuid == f"GPU-{uuid}"
        # nvidia-smi counts what the driver keeps for itself too.
        assert 0 <= (gpu.memory_bytes or 0) - device.total_memory + MIB < 0.1 * device.total_memory
        assert gpu.max_sm_clock_mhz
        assert gpu.power_limit_w
        assert gpu.pcie_generation
        assert gpu.pcie_width


def test_a_gpu_is_at_a_numa_node_that_the_node_has() -> None:
    machine, _ = collect("7", "1x1", "node", "lo", has_gpus=True, environment=os.environ)
    nodes = {node.number: node for node in numa_nodes()}
    for gpu in machine.gpus:
        if gpu.numa_node is not None and gpu.numa_cpus:
            assert {*parse_cpus(gpu.numa_cpus)} <= {*nodes[gpu.numa_node].cpus}


def test_a_missing_lscpu_is_a_note() -> None:
    machine, texts = collect("7", "1x1", "node", "lo", has_gpus=True, environment=os.environ)
    has_lscpu = shutil.which("lscpu") is not None
    assert ("lscpu.txt" in texts, machine.cpu is not None) == (has_lscpu, has_lscpu)
    assert has_lscpu or any("lscpu" in note for note in machine.notes)
