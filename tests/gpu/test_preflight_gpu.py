"""What the preflight reads of real GPUs."""

from __future__ import annotations

import pytest
import torch
from ddp_ladder.preflight.node_facts import gpus_facts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")]


def test_nvidia_smi_tells_of_the_gpus_that_torch_sees() -> None:
    facts = gpus_facts()
    assert facts.error is None
    assert len(facts.visible) == torch.cuda.device_count()
    assert {gpu.name for gpu in facts.visible} == {
        torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
    }
    for gpu in facts.visible:
        assert gpu.uuid.startswith("GPU-")
        assert gpu.memory_used_mib is not None
