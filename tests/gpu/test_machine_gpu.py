"""What a real node says of its GPUs: nvidia-smi and torch agree."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ddp_ladder.nodes.describe import describe, machine_directory
from ddp_ladder.platform.accelerators import ACCELERATORS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")]


def test_the_gpus_of_the_node_contain_those_that_torch_sees(tmp_path: Path) -> None:
    machine = describe(tmp_path, "1x1", "node", "lo", accelerator=ACCELERATORS["cuda"])
    files = {path.name for path in (machine_directory(tmp_path, "1x1") / "node").iterdir()}
    assert {"machine.json", "nvidia-smi-q.txt", "topo.txt"} <= files, machine.in_words
    assert "driver None" not in machine.in_words
    seen = {torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
    assert all(name in machine.in_words for name in seen)
    assert int(machine.in_words.partition(" x ")[0]) >= torch.cuda.device_count()
