"""Step times from CUDA events, on one GPU with NCCL and autocast."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from instrument_support import run, script

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")]

TRAIN = """
    import json, sys, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    wrap = sys.argv[1] == "ddp"
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    if wrap:
        dist.init_process_group("nccl", init_method="file://" + __file__ + ".meet",
                                rank=0, world_size=1)
    data = TensorDataset(torch.randn(64 * 60, 2048), torch.randn(64 * 60, 2048))
    sampler = DistributedSampler(data) if wrap else None
    loader = DataLoader(data, batch_size=64, sampler=sampler, pin_memory=True)
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(24)]).to(device)
    if wrap:
        model = DistributedDataParallel(model, device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def epoch():
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if wrap:
                dist.all_reduce(loss.detach())
            optimizer.step()

    seconds = []
    for _ in range(3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        epoch()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        big = torch.randn(8192, 8192, device=device)
        for _ in range(20):  # work between the epochs, not of a step
            big @ big
    print(json.dumps(seconds))
    if wrap:
        dist.destroy_process_group()
"""


@pytest.mark.parametrize("kind", ["ddp", "plain"])
def test_event_times_agree_with_a_synchronised_watch(tmp_path: Path, kind: str) -> None:
    done = run(tmp_path, script(tmp_path, TRAIN), kind, timeout_s=300)
    assert done.code == 0, done.err
    rows = done.rows()
    assert len(rows) == 180
    own_s = json.loads(done.out.splitlines()[-1])
    for epoch in (1, 2):  # the first one holds start-up
        measured_s = sum(row["step_time_s"] for row in rows[60 * epoch : 60 * (epoch + 1)])
        assert measured_s == pytest.approx(own_s[epoch], rel=0.05)
    assert sum(row["samples"] for row in rows) == 3 * 64 * 60
    check_record(done.rank(), kind)


def check_record(record: dict[str, Any], kind: str) -> None:
    name = torch.cuda.get_device_name(0)
    assert (record["device"]["kind"], record["device"]["index"]) == ("cuda", 0)
    assert record["device"]["name"] == record["fingerprint"]["gpu"] == name
    assert record["device"]["id"] == str(torch.cuda.get_device_properties(0).uuid)
    assert record["fingerprint"]["cuda"] == torch.version.cuda
    assert record["fingerprint"]["autocast_dtype"] == "bfloat16"
    assert record["peak_memory_bytes"]["device"] > 24 * 2048 * 2048 * 4
    assert record["peak_memory_bytes"]["device"] < record["memory_limit_bytes"]["device"] < 400e9
    assert record["parameters"]["count"] == 24 * (2048 * 2048 + 2048)
    assert record["backend"] == ("nccl" if kind == "ddp" else None)
    assert str(record["fingerprint"]["backend_class"]).startswith("ProcessGroupNCCL") == (kind == "ddp")
    if kind == "ddp":
        assert record["ddp"]["samples"] >= 1
        assert record["ddp"]["comm_s"] > 0
        (found,) = record["communication"]
        assert (found["name"], found["calls"]) == ("all_reduce", 179)
        assert 0 < found["seconds"] < 1.0
