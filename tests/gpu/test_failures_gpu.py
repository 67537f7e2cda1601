"""Failures of CUDA and NCCL, really: the verdict names the cause that was injected."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from one_run import run_script

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here"),
]

ALL_REDUCE = """
import torch, torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(1, device="cuda"))
"""
# Two ranks on one GPU: NCCL accepts them because it takes them for ranks of two hosts. Rank 1 stays away.
HANGS = """
import datetime, os, time, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
os.environ["NCCL_HOSTID"] = f"host{rank}"
torch.cuda.set_device(0)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=10))
ones = torch.ones(1, device="cuda")
dist.all_reduce(ones)
torch.cuda.synchronize()
if rank == 1:
    time.sleep(600)
dist.all_reduce(ones)
torch.cuda.synchronize()
"""


@pytest.mark.parametrize(
    ("script", "env", "verdict"),
    [
        (ALL_REDUCE, {"NCCL_SOCKET_IFNAME": "nosuch0"}, "NCCL found no network interface"),
        ("import torch\ntorch.cuda.set_device(99)", {}, "a rank asked for a GPU that it does not see"),
        ("import torch\ntorch.empty(2**50, device='cuda')", {}, "CUDA out of memory"),
    ],
)
def test_the_cause_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, env: dict[str, str], verdict: str
) -> None:
    record = run_script(script, tmp_path, monkeypatch, "1x1", device="cuda", backend="nccl", env=env)
    assert record.failure is not None
    assert verdict in record.failure.verdict


def test_a_hung_all_reduce_that_the_watchdog_ends_is_the_fault_of_the_rank_that_stayed_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = run_script(HANGS, tmp_path, monkeypatch, "1x2", device="cuda", backend="nccl")
    assert record.failure is not None
    assert "rank 1" in f"{record.failure.verdict} {record.failure.why}"
