"""Failures of CUDA and NCCL, really: the verdict names the cause that was injected."""

from __future__ import annotations

import pytest
import torch
from one_run import Here, failure_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")]

ALL_REDUCE = """
import torch, torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(1, device="cuda"))
"""
# Two ranks on one GPU: NCCL accepts them because it takes them for ranks of two hosts.
TWO_RANKS = """
import datetime, os, signal, time, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
os.environ["NCCL_HOSTID"] = f"host{rank}"
torch.cuda.set_device(0)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=10))
ones = torch.ones(1, device="cuda")
for number in range(5):
    if rank == 1 and number == 2:
        HERE
    dist.all_reduce(ones)
    torch.cuda.synchronize()
time.sleep(600 * rank)
"""
STAYS_AWAY, LEAVES_OUT = "time.sleep(600)", "continue"
OLDER = {"TORCH_DIST_USE_NCCL2": "0"}


@pytest.mark.parametrize(
    ("script", "env", "verdict"),
    [
        (ALL_REDUCE, {"NCCL_SOCKET_IFNAME": "nosuch0"}, "NCCL found no network interface"),
        ("import torch\ntorch.cuda.set_device(99)", {}, "a rank asked for a GPU that it does not see"),
        ("import torch\ntorch.empty(2**50, device='cuda')", {}, "CUDA out of memory"),
    ],
)
def test_the_cause_is_named(here: Here, script: str, env: dict[str, str], verdict: str) -> None:
    found = failure_of(here.run(script, "1x1", device="cuda", backend="nccl", env=env))
    assert verdict in found.verdict


@pytest.mark.parametrize(
    ("does", "words"),
    [
        (STAYS_AWAY, "rank 1"),
        (LEAVES_OUT, "rank 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1"),
        ("raise ValueError('the data are damaged')", "the data are damaged"),
    ],
)
def test_the_rank_that_fails_is_named_and_not_its_victim(here: Here, does: str, words: str) -> None:
    """For STAYS_AWAY and LEAVES_OUT, NCCL's watchdog ends the victim first. The code for CUDA was never run."""
    check_rank_1(here, does, words, {})


@pytest.mark.skipif(torch.__version__ < "2.15", reason="torch before 2.15 has that backend alone")
@pytest.mark.parametrize("does", [STAYS_AWAY, "raise ValueError('the data are damaged')"])
def test_the_older_backend_of_nccl_names_the_same_rank(here: Here, does: str) -> None:
    check_rank_1(here, does, "rank 1", OLDER)


def check_rank_1(here: Here, does: str, words: str, env: dict[str, str]) -> None:
    found = failure_of(here.run(TWO_RANKS.replace("HERE", does), "1x2", device="cuda", backend="nccl", env=env))
    assert words in f"{found.verdict} {found.why}"


def test_two_ranks_without_set_device_are_told_that_they_share_a_gpu(here: Here) -> None:
    script = ALL_REDUCE.replace("torch.cuda.set_device(0)\n", "")
    assert "two ranks use one GPU" in failure_of(here.run(script, "1x2", device="cuda", backend="nccl")).verdict
