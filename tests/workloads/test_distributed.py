"""The parts of the workloads that need no training: process group, learning rate, precision, cores."""

from __future__ import annotations

import os

import mnist
import pytest
import torch
from rank_support import on_ranks

import common


def test_python_alone_has_no_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with common.process_group() as world:
        assert not torch.distributed.is_initialized()
        assert (world.rank, world.size) == (0, 1)
        net = torch.nn.Linear(2, 2)
        assert common.distribute(net, world) is net
        assert net._compiled_call_impl is None
        assert common.distribute(net, world, compiled=True)._compiled_call_impl is not None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nccl_without_a_gpu_says_what_to_do() -> None:
    with pytest.raises(SystemExit, match="--backend gloo"), common.process_group("nccl"):
        pass


def test_the_rate_ramps_up_and_falls_along_half_a_cosine() -> None:
    for warmup_steps, wanted in ((0, [1, 0.853553, 0.5, 0.146447, 0]), (1, [0.5, 0.853553, 0.5, 0.146447, 0])):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        scheduler = common.warmed_up_cosine(optimizer, warmup_steps, 4)
        found = []
        for _ in wanted:
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        assert found == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_precisions(name: str, dtype: torch.dtype) -> None:
    chosen = common.Precision(name, torch.device("cpu"))
    with chosen.autocast():
        assert torch.nn.Linear(4, 4)(torch.randn(2, 4)).dtype == dtype
    assert chosen.scaler.is_enabled() == (name == "fp16")
    assert not torch.backends.cudnn.allow_tf32


def used(choice: str) -> list[int]:
    mnist.bind(choice)
    return sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_each_rank_has_cores_of_its_own_or_all_have_those_of_the_first() -> None:
    mine = sorted(os.sched_getaffinity(0))
    assert on_ranks(2, used, "launcher") == [mine] * 2
    own = on_ranks(2, used, "own")
    assert not {*own[0]} & {*own[1]}
    assert {*own[0], *own[1]} <= {*mine}
    assert on_ranks(2, used, "first") == [own[0]] * 2
