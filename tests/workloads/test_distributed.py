"""The parts of the workloads that need no training: process group, learning rate, precision, cores."""

from __future__ import annotations

import pytest
import torch

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
