"""Facts about parameters and optimizers, read from torch."""

from __future__ import annotations

import torch
from ddp_ladder_instrument import torch_facts


def checksum(named: list[tuple[str, torch.Tensor]]) -> str:
    return str(torch_facts.summary(named, names_each=True)["checksum"])


def test_checksum_sees_every_bit_and_dtype() -> None:
    weights = torch.randn(3, 5, dtype=torch.bfloat16)
    changed = weights.clone()
    changed[2, 4] += 1
    assert checksum([("w", weights)]) == checksum([("w", weights.clone())])
    sums = {
        checksum(named)
        for named in (
            [("w", weights)],
            [("v", weights)],
            [("w", changed)],
            [("w", weights.float())],
            [("w", weights.T)],
            [("w", weights), ("empty", torch.empty(0))],
        )
    }
    assert len(sums) == 6
    assert checksum([("w", weights.T)]) == checksum([("w", weights.T.contiguous())])
    assert torch_facts.main_dtype([("w", weights), ("b", torch.zeros(2))]) == "bfloat16"


def test_how_an_optimizer_steps_is_in_its_name() -> None:
    weight = torch.ones(1, requires_grad=True)
    assert torch_facts.optimizer_name(torch.optim.AdamW([weight])) == "AdamW"
    assert torch_facts.optimizer_name(torch.optim.AdamW([weight], fused=True)) == "AdamW (fused)"
    assert torch_facts.optimizer_name(torch.optim.SGD([weight], lr=1.0, foreach=True)) == "SGD (foreach)"
