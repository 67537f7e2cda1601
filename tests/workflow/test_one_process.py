"""One process for all GPUs of a node, as nn.DataParallel wants it; it is tried here without GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.gates.scaling import scale_points
from one_run import run_script

TRAIN = """
import os, torch
from torch.utils.data import DataLoader

assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & set(os.environ)
model = torch.nn.DataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(torch.randn(8000, 4), 128):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
"""


def test_one_process_counts_as_all_gpus_of_the_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run_script(TRAIN, tmp_path, monkeypatch, "1x2", variant="dataparallel", launcher="python")
    assert record.status == "ok", record.failure
    assert (record.world.size, record.world.backend, len(record.ranks)) == (1, None, 1)
    assert record.ranks[0].samples == 8000
    (point,) = scale_points([record.spec], {record.spec.name: record}, ())
    assert (point.world_size, point.batch_per_gpu, point.global_batch) == (2, 64, 128)
