"""Digests of the first batches, and the names of optimizers."""

from __future__ import annotations

import pytest
import torch
from ddp_ladder_instrument import batch_sizes, torch_facts


def test_batches_that_differ_anywhere_have_different_digests() -> None:
    x, y = torch.randn(12, 3), torch.arange(12)
    images = torch.zeros(2, 3, 300, 300)
    lit = images.clone()
    lit[1, :, 200:] = 1.0
    long = torch.arange(1_000_000).reshape(1, -1)
    batches = [(x, {"label": y}), (x, {"label": y + 1}), images, lit, long, long + 1]
    found = [batch_sizes.digest(batch) for batch in batches]
    assert len({*found}) == len(batches)
    assert batch_sizes.digest(lit.to(memory_format=torch.channels_last)) == found[3]


@pytest.mark.parametrize("batch", ["text", None, 3, [], torch.empty(4, device="meta"), torch.eye(3).to_sparse()])
def test_nothing_is_said_of_other_batches(batch: object) -> None:
    assert batch_sizes.digest(batch) is None


def test_how_an_optimizer_steps_is_in_its_name() -> None:
    weight = torch.ones(1, requires_grad=True)
    assert torch_facts.optimizer_name(torch.optim.AdamW([weight])) == "AdamW"
    assert torch_facts.optimizer_name(torch.optim.AdamW([weight], fused=True)) == "AdamW (fused)"
    assert torch_facts.optimizer_name(torch.optim.SGD([weight], lr=1.0, foreach=True)) == "SGD (foreach)"
