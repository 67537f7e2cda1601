"""measure.profile_steps on a GPU: torch.profiler's events of CUDA."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
from instrument_support import run, script

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")]

SLEEP_S = 0.02
TRAIN = f"""
    import time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method="file://" + __file__ + ".meet", rank=0, world_size=1)
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(24)]).to(device)
    model = DistributedDataParallel(model, device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for (x,) in DataLoader(TensorDataset(torch.randn(64 * 100, 2048)), batch_size=64):
        x = x.to(device)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
        time.sleep({SLEEP_S})
    dist.destroy_process_group()
"""


def test_the_trace_has_the_kernels_of_each_step(tmp_path: Path) -> None:
    done = run(tmp_path, script(tmp_path, TRAIN), max_steps=20, profile_steps=4)
    assert done.code == 0, done.err
    assert len(done.rows()) == 20
    events = json.loads(gzip.decompress(done.path(0, "trace.json.gz").read_bytes()))["traceEvents"]
    assert sum(each["name"].startswith("ProfilerStep#") for each in events if each.get("ph") == "X") >= 4
    assert any(each.get("cat") == "kernel" for each in events)
    assert any(each.get("cat") == "gpu_memcpy" for each in events)
